//! How durable each Kind is to be (R9), as routers say it: what the shard was started with, and over it what the cluster's
//! configuration says of Kinds. What it cannot do is answered, not refused: a Kind is served all the same.

use kindred_engine::durability::{Durability, KindModes, ModesError, ModesTaken};
use kindred_partition_config::key::Key;
use kindred_proto::shard_v1 as pb;
use tonic::Status;

use crate::{
    core::Core,
    durability::failpoint::{Point, around},
};

/// Why a shard without a data directory keeps nothing.
const IN_MEMORY: &str = "it keeps everything in memory: start it with --data-dir";

/// What is in force after the loop was asked.
pub struct Taken {
    modes: KindModes,
    /// Why not all is as it was asked.
    why: String,
}

/// The modes that a request asks for, over those that the shard was started with.
///
/// # Errors
/// When a Kind is named twice, or by something that is no prefix, or its mode is none that this version knows.
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

/// States that a cluster may have had between two that a shard hears of. A generation far above the one in force would keep out
/// every later one for good.
const GENERATIONS_AHEAD_MAX: u64 = 1 << 32;

/// Whether a generation can be one of the cluster, by the one in force.
///
/// # Errors
/// When it cannot.
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

/// On the loop, at any time: the answer to what changes nothing, as every router asks when it starts and after every change of
/// the cluster's state. A disk that is slow holds up nobody else for it.
pub fn unchanged(core: &mut Core, asked: &KindModes) -> Option<Taken> {
    if !core.keeps {
        let modes = KindModes { generation: asked.generation, ..KindModes::all(Durability::None) };
        return Some(Taken { modes, why: IN_MEMORY.to_owned() });
    }
    let same = core.engine.modes() == asked || core.engine.renumber_modes(asked);
    same.then(|| Taken { modes: asked.clone(), why: String::new() })
}

/// On the loop, when the logs are flushed: the modes are in force from here on, as far as they can be. `None` where they are
/// logged first: to be gone on with by [`take_logged`].
pub fn take(core: &mut Core, asked: KindModes) -> Option<Taken> {
    // Another router may have brought them since.
    if let Some(taken) = unchanged(core, &asked) {
        return Some(taken);
    }
    match around(Point::ModesTake, || core.set_modes(asked)) {
        Ok(ModesTaken::AfterLog) => None,
        Ok(ModesTaken::InForce | ModesTaken::AfterCheckpoint) => Some(in_force(core, None)),
        Err(refused) => Some(in_force(core, Some(refused))),
    }
}

/// The same when what [`take`] logged is on disk.
pub fn take_logged(core: &mut Core, asked: KindModes) -> Taken {
    let refused = around(Point::ModesTakeLogged, || core.set_modes(asked).err());
    in_force(core, refused)
}

fn in_force(core: &Core, refused: Option<ModesError>) -> Taken {
    let why = refused.map(|error| error.to_string()).unwrap_or_default();
    Taken { modes: core.engine.modes().clone(), why }
}

/// The answer: what is in force, and what of the request is not.
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

/// As the internal API writes it.
pub(crate) fn on_wire(mode: Durability) -> pb::Durability {
    match mode {
        Durability::None => pb::Durability::None,
        Durability::Buffered => pb::Durability::Buffered,
        Durability::Fsync => pb::Durability::Fsync,
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
        pb::SetModesRequest { generation: 7, default_mode, modes: modes.iter().map(mode).collect() }
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
