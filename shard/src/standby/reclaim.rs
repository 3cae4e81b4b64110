//! A member whose disk has the best copy that is left: it starts from that as a former primary, whatever it was told since.

use std::{fs, io, path::Path};

use kindred_partition_config::ids::Term;
use kindred_transport::private;

use super::{
    MemberId,
    role::{Does, Role, RoleError},
};

/// In the data directory of a standby: a whole copy is on the disk.
const WHOLE: &str = "whole";

/// Why a directory is not reclaimed.
#[derive(Debug, thiserror::Error)]
pub enum ReclaimError {
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error("it was never a standby, and was never told of another primary: start it as it is")]
    NoMember,
    #[error("it is a primary already: start it as it is")]
    IsPrimary,
    #[error("its copy was not whole yet when it ended")]
    NotWhole,
}

/// Notes that a whole copy is on the disk. What begins anew removes it.
///
/// # Errors
/// When the disk refuses.
pub fn note_whole(directory: &Path) -> io::Result<()> {
    private::write(&directory.join(WHOLE), b"")
}

/// Makes a former primary, or a standby with a whole copy, start from its disk. It serves nothing until an operator forces
/// a router to name it: others may have newer data.
///
/// # Errors
/// When there is nothing to start from, or the disk refuses.
pub fn reclaim(directory: &Path) -> Result<Role, ReclaimError> {
    let role = Role::read(directory)?.ok_or(ReclaimError::NoMember)?;
    match role.does {
        Does::Primary => return Err(ReclaimError::IsPrimary),
        Does::Standby if !fs::exists(directory.join(WHOLE)).unwrap_or(false) => {
            return Err(ReclaimError::NotWhole);
        }
        Does::Standby | Does::Superseded => {}
    }
    // It counts somebody who never comes, so it is in doubt until a router says that it is the primary (R20).
    let counted = vec![MemberId::whoever_was_promoted()];
    let reclaimed = Role { does: Does::Primary, named: Term(0), counted, primary: None, ..role };
    reclaimed.write(directory)?;
    Ok(reclaimed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standby::member::MemberMachine;

    #[test]
    fn r14_only_a_whole_copy_is_reclaimed_and_it_serves_nothing_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(matches!(reclaim(path), Err(ReclaimError::NoMember)));
        Role::alone().write(path).unwrap();
        assert!(matches!(reclaim(path), Err(ReclaimError::IsPrimary)));
        Role::begin_anew(path, Term(3), "http://127.0.0.1:1", None).unwrap();
        assert!(matches!(reclaim(path), Err(ReclaimError::NotWhole)));
        note_whole(path).unwrap();
        let role = reclaim(path).unwrap();
        assert_eq!(
            (role.does, role.term, role.follows(Some("http://127.0.0.1:1"))),
            (Does::Primary, Term(3), None)
        );
        let machine = MemberMachine::start(MemberId("me".to_owned()), Role::read(path).unwrap().unwrap(), 1);
        assert!(machine.in_doubt());
        // What begins anew is whole no more.
        Role::begin_anew(path, Term(4), "http://127.0.0.1:1", None).unwrap();
        assert!(matches!(reclaim(path), Err(ReclaimError::NotWhole)));
        // A former primary has what it had.
        Role { does: Does::Superseded, ..Role::alone() }.write(path).unwrap();
        assert_eq!(reclaim(path).unwrap().does, Does::Primary);
    }
}
