//! Durability modes as routers set them (R9): the modes with which the shard was started, overridden by those that the
//! cluster's configuration names. What the shard cannot provide is reported in the answer, not refused: the Kind is
//! served all the same.

use kindred_engine::durability::{Durability, KindModes, ModesError, ModesTaken};
use kindred_partition_config::key::Key;
use kindred_proto::shard_v1 as pb;
use tonic::Status;

use super::{Core, later::Taken};
use crate::{
    durability::failpoint::{Point, around},
    durability::status::on_wire,
};

/// Why a shard without a data directory keeps nothing.
const IN_MEMORY: &str = "it keeps everything in memory: start it with --data-dir";

/// The requested modes, on top of those with which the shard was started.
///
/// # Errors
/// When a Kind is named twice or by something that is not a prefix, or its mode is unknown to this version.
pub fn asked(request: &pb::SetModesRequest, own: &KindModes) -> Result<KindModes, Status> {
    let mut modes = KindModes { generation: request.generation, ..own.clone() };
    let mut named = std::collections::BTreeSet::new();
    for (at, of) in request.modes.iter().enumerate() {
        let wrong = |what: &str| {
            let prefix = String::from_utf8_lossy(&of.prefix);
            Status::invalid_argument(format!("kindred: modes[{at}] of {prefix:?} {what}"))
        };
        if !of.prefix.ends_with(b"/") {
            return Err(wrong("is not of a Kind's prefix, which ends with a slash"));
        }
        if !named.insert(of.prefix.clone()) {
            return Err(wrong("is the second one of its Kind"));
        }
        let mode = mode(of.mode()).ok_or_else(|| wrong("is none that this version knows"))?;
        modes.kinds.insert(Key(of.prefix.clone()), mode);
    }
    modes.default = mode(request.default_mode()).unwrap_or(modes.default);
    Ok(modes)
}

/// How far a generation may be above the one in force: more than a cluster changes its state between two requests. A
/// generation that is far too high would keep out all later ones for good.
const GENERATIONS_AHEAD_MAX: u64 = 1 << 32;

/// Refuses a generation that cannot be one of this cluster.
///
/// # Errors
/// When it is too far above the one in force.
pub fn bounded(core: &Core, asked: &KindModes) -> Result<(), Status> {
    let in_force = core.engine.modes().generation;
    if asked.generation > in_force.saturating_add(GENERATIONS_AHEAD_MAX) {
        return Err(Status::invalid_argument(format!(
            "kindred: generation {} cannot be of this cluster: the one in force is {in_force}",
            asked.generation
        )));
    }
    Ok(())
}

/// On the loop, at any time: answers a request that changes nothing, which every router sends at its start and after
/// every change of the cluster's state. It need not wait for the disk.
pub fn unchanged(core: &mut Core, asked: &KindModes) -> Option<Taken> {
    if !core.keeps {
        let modes = KindModes { generation: asked.generation, ..KindModes::all(Durability::None) };
        return Some(Taken { modes, why: IN_MEMORY.to_owned() });
    }
    let same = core.engine.modes() == asked || core.engine.renumber_modes(asked);
    same.then(|| Taken { modes: asked.clone(), why: String::new() })
}

/// On the loop, when the logs are flushed: puts the modes in force as far as possible. `None` if they are logged first;
/// then [`take_logged`] continues.
pub fn take(core: &mut Core, asked: KindModes) -> Option<Taken> {
    // Another router may have set them meanwhile.
    if let Some(taken) = unchanged(core, &asked) {
        return Some(taken);
    }
    match around(Point::ModesTake, || core.set_modes(asked)) {
        Ok(ModesTaken::AfterLog) => None,
        Ok(ModesTaken::InForce | ModesTaken::AfterCheckpoint) => Some(in_force(core, None)),
        Err(refused) => Some(in_force(core, Some(refused))),
    }
}

/// Continues when what [`take`] logged is on disk.
pub fn take_logged(core: &mut Core, asked: KindModes) -> Taken {
    let refused = around(Point::ModesTakeLogged, || core.set_modes(asked).err());
    in_force(core, refused)
}

fn in_force(core: &Core, refused: Option<ModesError>) -> Taken {
    let why = refused.map(|error| error.to_string()).unwrap_or_default();
    Taken { modes: core.engine.modes().clone(), why }
}

/// The answer: the generation in force, and the requested modes that are not in force.
#[must_use]
pub fn answer(request: &pb::SetModesRequest, asked: &KindModes, taken: &Taken) -> pb::SetModesResponse {
    let default = (mode(request.default_mode()).is_some() && taken.modes.default != asked.default)
        .then(|| (bytes::Bytes::new(), asked.default, taken.modes.default));
    let kinds = request.modes.iter().map(|of| {
        let (wanted, has) = (asked.of(&of.prefix), taken.modes.of(&of.prefix));
        (of.prefix.clone(), wanted, has)
    });
    let unmet = kinds.filter(|(_, wanted, has)| wanted != has).chain(default);
    let unmet = unmet.map(|(prefix, wanted, has)| pb::UnmetMode {
        prefix,
        wanted: on_wire(wanted) as i32,
        has: on_wire(has) as i32,
        reason: taken.why.clone(),
    });
    pb::SetModesResponse { generation: taken.modes.generation, unmet: unmet.collect() }
}

fn mode(mode: pb::Durability) -> Option<Durability> {
    match mode {
        pb::Durability::Unspecified => None,
        pb::Durability::None => Some(Durability::None),
        pb::Durability::Buffered => Some(Durability::Buffered),
        pb::Durability::Fsync => Some(Durability::Fsync),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(modes: &[(&'static str, pb::Durability)]) -> pb::SetModesRequest {
        let mode = |(prefix, mode): &(&'static str, pb::Durability)| pb::KindMode {
            prefix: (*prefix).into(),
            mode: *mode as i32,
        };
        let default_mode = pb::Durability::Unspecified as i32;
        let modes = modes.iter().map(mode).collect();
        pb::SetModesRequest { generation: 7, default_mode, modes, history: Vec::new() }
    }

    fn own() -> KindModes {
        let kinds = [(Key::from("/registry/leases/"), Durability::None)].into();
        KindModes { generation: 0, default: Durability::Buffered, kinds }
    }

    #[test]
    fn what_routers_say_lies_over_what_the_shard_was_started_with() {
        let request = request(&[("/registry/pods/", pb::Durability::Fsync)]);
        let modes = asked(&request, &own()).unwrap();
        let of = ["/registry/pods/", "/registry/leases/", "/registry/nodes/"]
            .map(|kind| modes.of(kind.as_bytes()));
        assert_eq!(of, [Durability::Fsync, Durability::None, Durability::Buffered]);
        let all = pb::SetModesRequest { default_mode: pb::Durability::Fsync as i32, ..request };
        assert_eq!((asked(&all, &own()).unwrap().default, modes.generation), (Durability::Fsync, 7));
    }

    #[test]
    fn what_cannot_be_done_is_answered() {
        let request = request(&[
            ("/registry/leases/", pb::Durability::None),
            ("/registry/pods/", pb::Durability::Fsync),
        ]);
        let asked = asked(&request, &own()).unwrap();
        let modes = KindModes { generation: 7, ..KindModes::all(Durability::None) };
        let taken = Taken { modes, why: "it is a test".to_owned() };
        let answered = answer(&request, &asked, &taken);
        let unmet: Vec<_> = answered.unmet.iter().map(|u| (&u.prefix[..], u.wanted(), u.has())).collect();
        assert_eq!(unmet, [(&b"/registry/pods/"[..], pb::Durability::Fsync, pb::Durability::None)]);
        let taken = Taken { modes: asked.clone(), why: String::new() };
        assert_eq!(answer(&request, &asked, &taken).unmet, []);
    }

    #[test]
    fn a_prefix_that_is_none_is_named() {
        let refused = |kinds: &[(&'static str, pb::Durability)]| {
            asked(&request(kinds), &own()).unwrap_err().message().to_owned()
        };
        let none = pb::Durability::None;
        assert!(refused(&[("/registry/pods", none)]).contains(r#"modes[0] of "/registry/pods" is not"#));
        let twice = [("/registry/pods/", none), ("/registry/pods/", none)];
        assert!(refused(&twice).contains("modes[1] of \"/registry/pods/\" is the second"));
        let unknown = [("/registry/pods/", pb::Durability::Unspecified)];
        assert!(refused(&unknown).contains("is none that"));
    }
}
