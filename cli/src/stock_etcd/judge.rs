//! What a look at an etcd means. No I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kindred_partition_config::ids::SLOT_BITS;
use kindred_proto::etcdserverpb::StatusResponse;
use kindred_router_core::fence::FenceDoc;

use super::Look;
use crate::admin::output::{bytes, count, counted};

/// The oldest etcd: the first of 3.5 whose answers to progress requests do not go back (etcd's CHANGELOG-3.5).
const OLDEST: [u64; 3] = [3, 5, 8];
/// How far above what shards show the revisions of an etcd must be that takes their keys, beyond the time of the moves.
const ABOVE: Duration = Duration::from_secs(600);
/// The number of Kinds that are named.
const NAMED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// It works, and somebody should know.
    Note,
    Refused,
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub of: &'static str,
    pub verdict: Verdict,
    pub text: String,
}

#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, of: &'static str, verdict: Verdict, text: impl Into<String>) {
        self.0.push(Finding { of, verdict, text: text.into() });
    }
}

/// Whether nothing is refused.
#[must_use]
pub fn may_go_on(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Refused)
}

/// A table of findings.
#[must_use]
pub fn shown(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let sign = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Refused => "REFUSED",
        };
        format!("{sign:<8} {:<9} {}\n", finding.of, finding.text)
    };
    findings.iter().map(line).collect()
}

/// Judges an etcd that is to be adopted at this time.
#[must_use]
pub fn to_adopt(look: &Look, now: SystemTime) -> Vec<Finding> {
    let mut report = Report::default();
    if !health(look, &mut report) {
        return report.0;
    }
    match &look.fence {
        None => {}
        Some(value) => match FenceDoc::read(value) {
            Ok(doc) if doc.is_open() => report.add("kindred", Verdict::Note, "a kindred has used it before"),
            Ok(doc) => report.add(
                "kindred",
                Verdict::Refused,
                format!(
                    "a kindred has moved {} of its key ranges away: what is there is old. Go on with that kindred, or restore \
                     this etcd from a backup",
                    doc.moved().len()
                ),
            ),
            Err(error) => report.add("kindred", Verdict::Refused, format!("the key \"\\x00\" is in use: {error}")),
        },
    }
    let shown_now = revision_at(now);
    if look.revision >= shown_now {
        report.add(
            "clock",
            Verdict::Refused,
            format!(
                "its revision {} lies above those that shards assign now ({shown_now}): Kinds cannot move away from it until \
                 the clock is past that. Is this machine's clock right?",
                look.revision
            ),
        );
    } else {
        report.add("clock", Verdict::Good, format!("revision {}, below those of shards", look.revision));
    }
    contents(look, &mut report);
    report.0
}

/// Judges an etcd to which a cluster goes, whose shards show this revision. Its keys may be deleted only if somebody said
/// so: nobody knows whose they are.
#[must_use]
pub fn to_leave(look: &Look, shown: i64, may_delete: bool) -> Vec<Finding> {
    let mut report = Report::default();
    if !health(look, &mut report) {
        return report.0;
    }
    let wanted =
        shown.saturating_add(i64::try_from(ABOVE.as_micros()).unwrap_or(i64::MAX >> 20) << SLOT_BITS);
    if look.revision <= wanted {
        report.add(
            "revision",
            Verdict::Refused,
            format!(
                "it is at revision {}, and kindred shows up to {shown} and counts on with the time: begin each member with a \
                 snapshot of kindred leave prepare",
                look.revision
            ),
        );
    } else {
        let ahead = u64::try_from((look.revision - shown) >> SLOT_BITS).unwrap_or_default();
        let hours = ahead / 3_600_000_000;
        report.add(
            "revision",
            Verdict::Good,
            format!("{}, above kindred's for {}", look.revision, counted(hours, "hour")),
        );
    }
    match look.keys() {
        0 => report.add("keys", Verdict::Good, "none yet"),
        keys if may_delete => {
            let text =
                format!("{}: what Kinds have there is deleted when they move to it", counted(keys, "key"));
            report.add("keys", Verdict::Note, text);
        }
        keys => {
            let named: Vec<_> = look.first.iter().map(|key| format!("\"{}\"", key.escape_ascii())).collect();
            let more = if keys > named.len() as u64 { " and others" } else { "" };
            let text = format!(
                "{} of somebody else, {}{more}: they would be deleted when Kinds move there; take an etcd without keys, or \
                 say --delete-its-keys",
                counted(keys, "key"),
                named.join(", ")
            );
            report.add("keys", Verdict::Refused, text);
        }
    }
    report.0
}

/// Versions, members, alarms, authentication. False if it could not be asked anything more.
fn health(look: &Look, report: &mut Report) -> bool {
    if look.auth {
        let text = "authentication is enabled, and kindred has no users: use client certificates, and etcdctl auth disable";
        report.add("auth", Verdict::Refused, text);
        return false;
    }
    let mut answered: Vec<&StatusResponse> = Vec::new();
    for (name, status) in &look.members {
        match status {
            Ok(status) => answered.push(status),
            Err(error) => report.add("member", Verdict::Refused, format!("{name} does not answer: {error}")),
        }
    }
    let Some(first) = answered.first() else { return false };
    let cluster = |status: &StatusResponse| status.header.as_ref().map(|header| header.cluster_id);
    if answered.iter().any(|status| cluster(status) != cluster(first)) {
        report.add("member", Verdict::Refused, "the URLs are of different etcds: give those of one");
    }
    if answered.iter().any(|status| status.leader == 0) {
        report.add("member", Verdict::Refused, "a member has no leader: wait until it has one");
    }
    if answered.iter().any(|status| status.is_learner) {
        report.add("member", Verdict::Refused, "a learner serves no writes: leave its URL out");
    }
    for status in &answered {
        let verdict = if is_new_enough(&status.version) { Verdict::Good } else { Verdict::Refused };
        let [major, minor, patch] = OLDEST;
        let wanted = if verdict == Verdict::Good {
            String::new()
        } else {
            format!(": kindred needs {major}.{minor}.{patch} or newer")
        };
        report.add("version", verdict, format!("etcd {}{wanted}", status.version));
    }
    for alarm in &look.alarms {
        report.add(
            "alarm",
            Verdict::Refused,
            format!("{alarm} is raised: it takes no writes; see etcdctl alarm list"),
        );
    }
    report.add("auth", Verdict::Good, "none, as kindred expects");
    true
}

fn contents(look: &Look, report: &mut Report) {
    let (file, used) = look.size();
    report.add(
        "size",
        Verdict::Good,
        format!("{} of keys and history, in a file of {}", bytes(used), bytes(file)),
    );
    let mut kinds: Vec<_> = look.kinds.iter().collect();
    kinds.sort_by_key(|(_, keys)| std::cmp::Reverse(*keys));
    let named: Vec<_> =
        kinds.iter().take(NAMED).map(|(kind, keys)| format!("{kind} {}", count(*keys))).collect();
    let more = match kinds.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {} more", count(more as u64)),
    };
    match named.is_empty() {
        true => report.add("keys", Verdict::Note, "no Kind of Kubernetes: is --etcd-prefix right?"),
        false => report.add(
            "keys",
            Verdict::Good,
            format!("{}: {}{more}", counted(look.keys(), "key"), named.join(", ")),
        ),
    }
    if look.others > 0 {
        report.add(
            "keys",
            Verdict::Note,
            format!("{} of no Kind, which stay there", counted(look.others, "key")),
        );
    }
    report.add(
        "leases",
        Verdict::Good,
        format!("{}; keys take theirs along when they move", counted(look.leases, "lease")),
    );
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u64>);
    let mut next = || parts.next().and_then(Result::ok).unwrap_or_default();
    [next(), next(), next()] >= OLDEST
}

/// The revisions that shards assign at a time.
#[must_use]
pub fn revision_at(now: SystemTime) -> i64 {
    let micros = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    i64::try_from(micros).unwrap_or(i64::MAX >> SLOT_BITS) << SLOT_BITS
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::{Epoch, MoveId, Revision, Term};
    use kindred_partition_config::key::{Key, KeyRange};
    use kindred_partition_config::map::StoreIdx;
    use kindred_partition_config::transfers::Transfer;
    use kindred_partition_config::unit::Unit;
    use kindred_proto::etcdserverpb::ResponseHeader;
    use kindred_router_core::fence::FencedUnit;

    use super::*;

    fn member(version: &str) -> StatusResponse {
        let header = Some(ResponseHeader { cluster_id: 7, ..Default::default() });
        StatusResponse { header, version: version.to_owned(), leader: 1, db_size: 4096, ..Default::default() }
    }

    fn look(members: Vec<Result<StatusResponse, String>>) -> Look {
        let members = members.into_iter().map(|status| ("http://a".to_owned(), status)).collect();
        let kinds = vec![("/registry/pods/".to_owned(), 3)];
        Look { members, kinds, others: 1, revision: 100, ..Look::default() }
    }

    fn refused(findings: &[Finding]) -> Vec<&str> {
        let refused = findings.iter().filter(|finding| finding.verdict == Verdict::Refused);
        refused.map(|finding| finding.of).collect()
    }

    #[test]
    fn which_etcds_are_adopted() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let good = look(vec![Ok(member("3.5.8"))]);
        let findings = to_adopt(&good, now);
        assert!(may_go_on(&findings), "{}", shown(&findings));
        assert!(shown(&findings).contains("4 keys: /registry/pods/ 3"), "{}", shown(&findings));
        let of = |change: &dyn Fn(&mut Look)| {
            let mut look = good.clone();
            change(&mut look);
            to_adopt(&look, now)
        };
        assert_eq!(refused(&to_adopt(&look(vec![Ok(member("3.5.7"))]), now)), ["version"]);
        assert_eq!(refused(&to_adopt(&look(vec![Ok(member("3.7.0-rc.1"))]), now)), [""; 0]);
        assert_eq!(
            refused(&to_adopt(&look(vec![Err("gone".to_owned()), Ok(member("3.6.1"))]), now)),
            ["member"]
        );
        let mut other = member("3.6.1");
        other.header.as_mut().unwrap().cluster_id = 8;
        assert_eq!(refused(&to_adopt(&look(vec![Ok(other), Ok(member("3.6.1"))]), now)), ["member"]);
        let leaderless = StatusResponse { leader: 0, ..member("3.6.1") };
        assert_eq!(refused(&to_adopt(&look(vec![Ok(leaderless)]), now)), ["member"]);
        assert_eq!(refused(&of(&|look| look.auth = true)), ["auth"]);
        assert_eq!(refused(&of(&|look| look.alarms.push("NOSPACE".to_owned()))), ["alarm"]);
        assert_eq!(refused(&of(&|look| look.revision = revision_at(now))), ["clock"]);
        assert_eq!(refused(&of(&|look| look.fence = Some(FenceDoc::default().to_json().into()))), [""; 0]);
        assert_eq!(refused(&of(&|look| look.fence = Some(bytes::Bytes::from_static(b"mine")))), ["kindred"]);
        assert!(!may_go_on(&to_adopt(&look(vec![Err("gone".to_owned())]), now)));
    }

    #[test]
    fn which_etcds_take_a_cluster_back() {
        let shown_by_shards = 1_800_000_000_000_000 << SLOT_BITS;
        let mut prepared = look(vec![Ok(member("3.7.3"))]);
        assert_eq!(refused(&to_leave(&prepared, shown_by_shards, true)), ["revision"]);
        prepared.revision = shown_by_shards + (7_200_000_000 << SLOT_BITS);
        let findings = to_leave(&prepared, shown_by_shards, true);
        assert!(may_go_on(&findings) && shown(&findings).contains("for 2 hours"), "{}", shown(&findings));
        prepared.revision = shown_by_shards + (60_000_000 << SLOT_BITS);
        assert_eq!(
            refused(&to_leave(&prepared, shown_by_shards, true)),
            ["revision"],
            "it would be overtaken soon"
        );
    }

    /// The etcd's own keys were deleted, with no more than a note of how many there were.
    #[test]
    fn f86_keys_of_somebody_else_are_deleted_only_if_somebody_says_so() {
        let mut taken = look(vec![Ok(member("3.7.3"))]);
        taken.revision = i64::MAX;
        taken.first = vec![b"/other/app"[..].into(), b"/registry/pods/old/p\xff"[..].into()];
        let findings = to_leave(&taken, 1, false);
        assert_eq!(refused(&findings), ["keys"]);
        let text = shown(&findings);
        assert!(
            text.contains(r#"4 keys of somebody else, "/other/app", "/registry/pods/old/p\xff" and others"#),
            "{text}"
        );
        assert!(may_go_on(&to_leave(&taken, 1, true)));
        (taken.kinds, taken.others) = (Vec::new(), 0);
        assert!(may_go_on(&to_leave(&taken, 1, false)));
    }

    #[test]
    fn an_etcd_that_gave_keys_away_is_not_adopted_by_another() {
        let range = KeyRange::prefix(Key::from("/registry/pods/"));
        let transfer =
            Transfer { unit: Unit::of_range(range), from: StoreIdx(0), to: StoreIdx(1), kind: None };
        let by = FencedUnit { id: MoveId(1), term: Term(1), transfer };
        let mut doc = FenceDoc::default();
        doc.track(&by).unwrap();
        doc.freeze(&by, Revision(7)).unwrap();
        doc.release(&by, Epoch(2)).unwrap();
        let mut given_away = look(vec![Ok(member("3.7.3"))]);
        given_away.fence = Some(doc.to_json().into());
        let findings = to_adopt(&given_away, UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert_eq!(refused(&findings), ["kindred"], "{}", shown(&findings));
    }
}
