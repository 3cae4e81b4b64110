//! How durable each Kind is to be (R9), as routers say it. This shard keeps everything in memory, and answers so for each
//! Kind that is to survive a restart.

use std::sync::atomic::{AtomicU64, Ordering};

use kindred_proto::shard_v1 as pb;
use tonic::Status;

/// Why a Kind is not kept.
const IN_MEMORY: &str = "this shard keeps its data in memory only";

/// The newest modes that a router has told.
#[derive(Debug, Default)]
pub struct Told {
    generation: AtomicU64,
}

impl Told {
    /// Takes note of modes; what cannot be done of them.
    ///
    /// # Errors
    /// When a Kind is named twice, or by something that is no prefix.
    pub fn take(&self, request: pb::SetModesRequest) -> Result<pb::SetModesResponse, Status> {
        for (at, of) in request.modes.iter().enumerate() {
            let what = |what: &str| {
                let prefix = String::from_utf8_lossy(&of.prefix);
                Status::invalid_argument(format!("kindred: modes[{at}].prefix: {prefix:?} {what}"))
            };
            if !of.prefix.ends_with(b"/") {
                return Err(what("is not the prefix of a Kind, which ends with a slash"));
            }
            if request.modes[..at].iter().any(|other| other.prefix == of.prefix) {
                return Err(what("is named twice"));
            }
        }
        let before = self.generation.fetch_max(request.generation, Ordering::AcqRel);
        let lasting = |mode: pb::Durability| matches!(mode, pb::Durability::Buffered | pb::Durability::Fsync);
        let default = pb::KindMode { prefix: bytes::Bytes::new(), mode: request.default_mode };
        let unmet = request.modes.into_iter().chain([default]).filter(|of| lasting(of.mode()));
        let unmet = unmet.map(|of| pb::UnmetMode {
            prefix: of.prefix,
            wanted: of.mode,
            has: pb::Durability::None as i32,
            reason: IN_MEMORY.to_owned(),
        });
        Ok(pb::SetModesResponse { generation: before.max(request.generation), unmet: unmet.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(generation: u64, modes: &[(&'static str, pb::Durability)]) -> pb::SetModesRequest {
        let mode = |(prefix, mode): &(&'static str, pb::Durability)| pb::KindMode {
            prefix: (*prefix).into(),
            mode: *mode as i32,
        };
        let default_mode = pb::Durability::Unspecified as i32;
        pb::SetModesRequest { generation, default_mode, modes: modes.iter().map(mode).collect() }
    }

    #[test]
    fn what_is_to_be_kept_and_is_not_is_answered() {
        let told = Told::default();
        let kinds = [("/registry/pods/", pb::Durability::Fsync), ("/registry/leases/", pb::Durability::None)];
        let answer = told.take(request(7, &kinds)).unwrap();
        let unmet: Vec<_> = answer.unmet.iter().map(|u| (&u.prefix[..], u.wanted(), u.has())).collect();
        assert_eq!(unmet, [(&b"/registry/pods/"[..], pb::Durability::Fsync, pb::Durability::None)]);
        assert_eq!((answer.generation, told.take(request(3, &[])).unwrap().generation), (7, 7));
        let of_default =
            pb::SetModesRequest { default_mode: pb::Durability::Buffered as i32, ..request(8, &[]) };
        assert_eq!(told.take(of_default).unwrap().unmet[0].prefix, "");
    }

    #[test]
    fn a_prefix_that_is_none_is_named() {
        let refused = |kinds: &[(&'static str, pb::Durability)]| {
            Told::default().take(request(1, kinds)).unwrap_err().message().to_owned()
        };
        let none = pb::Durability::None;
        assert!(refused(&[("/registry/pods", none)]).contains(r#"modes[0].prefix: "/registry/pods" is not"#));
        let twice = [("/registry/pods/", none), ("/registry/pods/", none)];
        assert!(refused(&twice).contains("modes[1].prefix: \"/registry/pods/\" is named twice"));
    }
}
