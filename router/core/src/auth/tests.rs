use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::ids::LeaseId;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::request_op::Request;
use kindred_wire::error::EtcdError;
use kindred_wire::peek::WireError;
use proptest::prelude::*;
use prost::Message as _;

use super::document::hex;
use super::methods::{METHODS, Who, who};
use super::request::{Denied, check};
use super::rules::{Caller, Rules, Worth};
use super::token::{LIFETIME_S, Token};
use super::{Access, AuthState, Permission, ROOT};
use crate::plan::Call;

fn permission(access: Access, key: &str, range_end: &str) -> Option<Permission> {
    Some(Permission { access, key: key.into(), range_end: range_end.into() })
}

/// `root`, and `ann` with the role `r`, who reads `a` to `c`, writes `b` to `d`, and both at `k`. Auth is on.
fn enabled() -> AuthState {
    let state = AuthState::default().user_add(ROOT, Some("h".to_owned())).unwrap();
    let state = state.user_grant_role(ROOT, ROOT).unwrap().user_add("ann", Some("h".to_owned())).unwrap();
    let state = state.role_add("r").unwrap().user_grant_role("ann", "r").unwrap();
    let state = state.role_grant_permission("r", permission(Access::Read, "a", "c")).unwrap();
    let state = state.role_grant_permission("r", permission(Access::Write, "b", "d")).unwrap();
    state.role_grant_permission("r", permission(Access::ReadWrite, "k", "")).unwrap().enable().unwrap()
}

fn denied(error: EtcdError) -> Result<super::request::Asked, Denied> {
    Err(Denied::Etcd(error))
}

#[test]
fn changes_have_etcds_conditions() {
    let none = AuthState::default();
    assert_eq!(none.enable(), Err(EtcdError::RootUserNotExist));
    assert_eq!(none.user_add("", None), Err(EtcdError::UserEmpty));
    assert_eq!(none.role_add(""), Err(EtcdError::RoleEmpty));
    assert_eq!(none.user_delete("x"), Err(EtcdError::UserNotFound));
    assert_eq!(none.user_change_password("x", "h"), Err(EtcdError::UserNotFound));
    assert_eq!(none.role_delete("x"), Err(EtcdError::RoleNotFound));
    assert_eq!(none.role_grant_permission("x", None), Err(EtcdError::PermissionNotGiven));
    let empty = permission(Access::Read, "b", "a");
    assert_eq!(none.role_grant_permission("x", empty), Err(EtcdError::InvalidAuthMgmt), "before the role");
    assert_eq!(
        none.role_grant_permission("x", permission(Access::Read, "a", "")),
        Err(EtcdError::RoleNotFound)
    );
    assert_eq!(none.role_revoke_permission("x", b"a", b""), Err(EtcdError::RoleNotFound));

    let rooted = none.user_add(ROOT, None).unwrap();
    assert_eq!(rooted.user_add(ROOT, None), Err(EtcdError::UserAlreadyExists));
    assert_eq!(rooted.enable(), Err(EtcdError::RootRoleNotExist));
    assert_eq!(rooted.user_grant_role("x", ROOT), Err(EtcdError::UserNotFound));
    assert_eq!(rooted.user_grant_role(ROOT, "r"), Err(EtcdError::RoleNotFound));
    assert_eq!(rooted.user_revoke_role(ROOT, ROOT), Err(EtcdError::RoleNotGranted));
    assert_eq!(
        rooted.permissions_shown(ROOT),
        Err(EtcdError::RoleNotFound),
        "it need not exist to be granted"
    );

    let state = enabled();
    assert_eq!(state.enable().unwrap(), state, "twice");
    assert_eq!(state.role_add("r"), Err(EtcdError::RoleAlreadyExists));
    assert_eq!(state.user_grant_role("ann", "r").unwrap(), state, "granted twice, nothing changes");
    assert_eq!(state.user_delete(ROOT), Err(EtcdError::InvalidAuthMgmt));
    assert_eq!(state.role_delete(ROOT), Err(EtcdError::InvalidAuthMgmt));
    assert_eq!(state.user_revoke_role(ROOT, ROOT), Err(EtcdError::InvalidAuthMgmt));
    assert_eq!(state.role_revoke_permission("r", b"a", b""), Err(EtcdError::PermissionNotGranted));
    let off = state.disable();
    assert_eq!(off.revision, state.revision + 1);
    assert_eq!(off.disable(), off);
    assert!(off.user_delete(ROOT).is_ok() && off.user_revoke_role(ROOT, ROOT).is_ok());
}

#[test]
fn a_grant_for_the_same_range_takes_the_place_of_the_former() {
    let state = AuthState::default().role_add("r").unwrap();
    let grant = |state: &AuthState, access, end| {
        state.role_grant_permission("r", permission(access, "a", end)).unwrap()
    };
    let state = grant(&grant(&state, Access::ReadWrite, "b"), Access::ReadWrite, "c");
    let state = grant(&state, Access::Read, "c");
    let shown: Vec<_> =
        state.permissions_shown("r").unwrap().into_iter().map(|has| (has.access, has.range_end)).collect();
    assert_eq!(shown, [(Access::ReadWrite, b"b".to_vec()), (Access::Read, b"c".to_vec())]);
}

#[test]
fn a_document_is_read_as_it_was_written_and_no_other_form_is() {
    let state = enabled().after(&AuthState::default(), &[7; 32]);
    let json = state.to_json();
    assert_eq!(AuthState::from_json(json.as_bytes()).unwrap(), state);
    assert_eq!(state.change, 1);
    assert_eq!(state.clone().after(&state, &[8; 32]).key, [7; 32], "the key stays");
    let later = json.replacen("\"version\":1", "\"version\":2", 1);
    assert!(AuthState::from_json(later.as_bytes()).unwrap_err().to_string().contains("the form 2"));
    let more = json.replacen("{\"version\"", "{\"denyAll\":true,\"version\"", 1);
    assert!(AuthState::from_json(more.as_bytes()).is_err(), "a field that is not known may forbid something");
    for bad in ["", "{}", "[]", "{\"version\":1}"] {
        assert!(AuthState::from_json(bad.as_bytes()).is_err(), "{bad}");
    }
    let debug = format!("{state:?}");
    assert!(!debug.contains(&hex::encode(&[7; 32])) && !debug.contains("\"h\""), "{debug}");
}

#[test]
fn a_caller_is_a_user_as_of_now() {
    let rules = Rules::of(enabled());
    let ann = rules.named("ann");
    assert_eq!(rules.may_read(Some(&ann), b"a", b"c"), Ok(()));
    assert_eq!(rules.may_read(Some(&ann), b"b", b"d"), Err(EtcdError::PermissionDenied));
    assert_eq!(rules.may_write(Some(&ann), b"b", b"d"), Ok(()));
    assert_eq!(rules.may_write(Some(&ann), b"a", b""), Err(EtcdError::PermissionDenied));
    assert_eq!(rules.may_read(None, b"a", b""), Err(EtcdError::UserEmpty));
    let old = Caller { revision: ann.revision - 1, ..ann.clone() };
    assert_eq!(rules.may_read(Some(&old), b"a", b""), Err(EtcdError::AuthOldRevision));
    let nobody = rules.named("nobody");
    assert_eq!(rules.may_read(Some(&nobody), b"a", b""), Err(EtcdError::PermissionDenied));
    let root = rules.named(ROOT);
    assert_eq!(rules.may_read(Some(&root), b"\0", b"\0"), Ok(()));
    let roots: Vec<_> =
        [None, Some(&nobody), Some(&ann), Some(&root)].map(|caller| rules.is_root(caller)).into();
    let want =
        [Err(EtcdError::UserEmpty), Err(EtcdError::UserNotFound), Err(EtcdError::PermissionDenied), Ok(())];
    assert_eq!(roots, want);
    assert_eq!(rules.may_see_user(Some(&ann), "ann"), Ok(()));
    assert_eq!(rules.may_see_user(Some(&ann), ROOT), Err(EtcdError::PermissionDenied));
    assert_eq!(rules.may_see_role(Some(&ann), "r"), Ok(()));
    assert_eq!(rules.may_see_role(Some(&ann), "other"), Err(EtcdError::PermissionDenied));
    assert_eq!(rules.may_see_role(None, "r"), Err(EtcdError::UserEmpty));
    let off = Rules::of(enabled().disable());
    assert!(off.may_read(None, b"x", b"").is_ok() && off.is_root(None).is_ok() && off.is_user(None).is_ok());
}

#[test]
fn a_token_is_worth_something_while_its_user_is_the_one_that_got_it() {
    let state = enabled();
    let token = Token::new("ann", state.revision, 1000);
    let worth = |state: &AuthState, now| Rules::of(state.clone()).worth(&token, now);
    let good = |state: &AuthState| worth(state, 1001) == Worth::Good(Rules::of(state.clone()).named("ann"));
    assert!(good(&state));
    assert!(good(&state.role_add("s").unwrap()), "other changes do not end it");
    assert!(good(&state.user_revoke_role("ann", "r").unwrap()));
    assert_eq!(worth(&state, 1000 + LIFETIME_S - 1), worth(&state, 1001));
    assert_eq!(worth(&state, 1000 + LIFETIME_S), Worth::Nothing, "it is over");
    let gone = state.user_delete("ann").unwrap();
    for other in [
        gone.clone(),
        gone.user_add("ann", Some("h".to_owned())).unwrap(),
        state.user_change_password("ann", "i").unwrap(),
        state.disable(),
        state.disable().enable().unwrap(),
    ] {
        assert_eq!(worth(&other, 1001), Worth::Nothing, "{other:?}");
    }
    let mut behind = state;
    behind.revision -= 1;
    assert_eq!(worth(&behind, 1001), Worth::Ahead);
}

#[test]
fn a_token_is_text_and_nothing_else_is_read() {
    let token = Token { user: "än.n\n".to_owned(), revision: 7, expires: 99 };
    let signed = token.signed();
    assert_eq!(Token::read(&signed).as_ref(), Some(&token));
    let text = Token::text(&signed, &[1, 254]);
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'), "{text}");
    assert_eq!(Token::parts(&text), Some((&*signed, vec![1, 254])));
    for bad in
        ["", ".", "k1", "k1..7", "k2.61.7.99", "k1.6.7.99", "k1.61.7.99.1", "k1.61.-7.99", "k1.ff.7.99"]
    {
        assert_eq!(Token::read(bad), None, "{bad}");
    }
    for bad in ["", "k1", "k1.61.7.99.0", "k1.61.7.99.zz", "k1.é"] {
        assert_eq!(Token::parts(bad), None, "{bad}");
    }
}

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn put(key: &'static str) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), ..Default::default() }
}

fn get(key: &'static str, range_end: &'static str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

fn delete(key: &'static str, range_end: &'static str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

fn may(call: Call, request: &impl prost::Message) -> Result<super::request::Asked, Denied> {
    let rules = Rules::of(enabled());
    check(&rules, Some(&rules.named("ann")), call, &request.encode_to_vec())
}

#[test]
fn requests_need_what_they_touch() {
    let no = || denied(EtcdError::PermissionDenied);
    assert!(may(Call::Range, &get("a", "c")).is_ok());
    assert_eq!(may(Call::Range, &get("a", "\0")), no());
    assert_eq!(may(Call::RangeStream, &get("\0", "\0")), no());
    assert_eq!(may(Call::Range, &get("", "")), no());
    assert!(may(Call::Put, &put("c")).unwrap().writes);
    assert_eq!(may(Call::Put, &put("a")), no());
    assert_eq!(
        may(Call::Put, &pb::PutRequest { prev_kv: true, ..put("c") }),
        no(),
        "it reads what was there"
    );
    assert!(may(Call::Put, &pb::PutRequest { prev_kv: true, ..put("k") }).is_ok());
    assert!(may(Call::DeleteRange, &delete("b", "d")).is_ok());
    assert_eq!(may(Call::DeleteRange, &delete("b", "\0")), no());
    assert_eq!(may(Call::DeleteRange, &pb::DeleteRangeRequest { prev_kv: true, ..delete("b", "d") }), no());
    let leased = may(Call::Put, &pb::PutRequest { lease: 9, ..put("c") }).unwrap();
    assert_eq!(leased.leases, [LeaseId(9)]);
    let rules = Rules::of(enabled());
    let of_root = pb::PutRequest { lease: 9, ..put("c") }.encode_to_vec();
    assert!(check(&rules, Some(&rules.named(ROOT)), Call::Put, &of_root).unwrap().leases.is_empty());
    assert_eq!(check(&rules, None, Call::Put, &of_root), denied(EtcdError::UserEmpty));
    assert_eq!(
        check(&rules, Some(&rules.named("ann")), Call::Put, b"\x0a\xff"),
        Err(Denied::Malformed(WireError::Truncated))
    );
}

#[test]
fn every_part_of_a_transaction_counts() {
    let no = || denied(EtcdError::PermissionDenied);
    let txn = |success: Vec<Request>, failure: Vec<Request>| pb::TxnRequest {
        compare: Vec::new(),
        success: success.into_iter().map(op).collect(),
        failure: failure.into_iter().map(op).collect(),
    };
    let compare = |key: &'static str, range_end: &'static str| pb::TxnRequest {
        compare: vec![pb::Compare { key: key.into(), range_end: range_end.into(), ..Default::default() }],
        ..Default::default()
    };
    assert!(may(Call::Txn, &compare("a", "c")).is_ok());
    assert_eq!(may(Call::Txn, &compare("c", "")), no());
    assert_eq!(may(Call::Txn, &compare("a", "\0")), no());
    let fine = || Request::RequestRange(get("a", ""));
    assert!(!may(Call::Txn, &txn(vec![fine()], vec![fine()])).unwrap().writes);
    for bad in [
        Request::RequestRange(get("x", "")),
        Request::RequestPut(put("a")),
        Request::RequestPut(pb::PutRequest { prev_kv: true, ..put("c") }),
        Request::RequestDeleteRange(delete("a", "\0")),
        Request::RequestDeleteRange(pb::DeleteRangeRequest { prev_kv: true, ..delete("c", "") }),
    ] {
        let nested = |depth| {
            (0..depth).fold(bad.clone(), |inner, _| Request::RequestTxn(txn(vec![], vec![fine(), inner])))
        };
        for depth in 0..4 {
            assert_eq!(may(Call::Txn, &txn(vec![fine(), nested(depth)], vec![])), no(), "{bad:?} {depth}");
            assert_eq!(may(Call::Txn, &txn(vec![fine()], vec![nested(depth)])), no(), "{bad:?} {depth}");
        }
    }
    let with_lease = |lease, key| Request::RequestPut(pb::PutRequest { lease, ..put(key) });
    let inner = txn(vec![with_lease(3, "c")], vec![with_lease(4, "c"), with_lease(3, "k")]);
    let asked = may(Call::Txn, &txn(vec![Request::RequestTxn(inner)], vec![])).unwrap();
    assert_eq!((asked.leases, asked.writes), (vec![LeaseId(3), LeaseId(4)], true));
    let rules = Rules::of(enabled());
    assert_eq!(check(&rules, None, Call::Txn, &[]), denied(EtcdError::UserEmpty));
}

/// The methods of etcd's API in its description, and those of cluster changes, which kindred answers by their path.
#[test]
fn every_method_of_the_api_is_in_the_table_and_no_other() {
    let pool = prost_reflect::DescriptorPool::decode(kindred_proto::DESCRIPTORS).unwrap();
    let described = pool.services().flat_map(|service| {
        let of =
            |method: prost_reflect::MethodDescriptor| format!("/{}/{}", service.full_name(), method.name());
        service.methods().map(of).collect::<Vec<_>>()
    });
    let mut methods: BTreeSet<String> = described.collect();
    for by_path in [
        "Cluster/MemberAdd",
        "Cluster/MemberRemove",
        "Cluster/MemberUpdate",
        "Cluster/MemberPromote",
        "Maintenance/MoveLeader",
        "Maintenance/Downgrade",
    ] {
        methods.insert(format!("/etcdserverpb.{by_path}"));
    }
    methods.extend(["Check", "Watch"].map(|method| format!("/grpc.health.v1.Health/{method}")));
    let listed = METHODS
        .iter()
        .flat_map(|(service, methods)| methods.iter().map(move |(method, _)| format!("/{service}/{method}")));
    assert_eq!(listed.collect::<BTreeSet<_>>(), methods);
    assert_eq!(who("/etcdserverpb.Maintenance/Snapshot"), Who::Root);
    assert_eq!(who("/etcdserverpb.Auth/Authenticate"), Who::Anyone);
    assert_eq!([who("/new.Service/Method"), who(""), who("/etcdserverpb.KV/Other")], [Who::Root; 3]);
}

/// A change by numbers, so that random ones meet each other often.
#[derive(Debug, Clone)]
enum Change {
    Enable,
    Disable,
    UserAdd(usize),
    UserDelete(usize),
    Password(usize),
    GrantRole(usize, usize),
    RevokeRole(usize, usize),
    RoleAdd(usize),
    RoleDelete(usize),
    Grant(usize, Access, usize, usize),
    Revoke(usize, usize, usize),
}

const USERS: [&str; 3] = [ROOT, "u", "v"];
const ROLES: [&str; 3] = [ROOT, "r", "s"];
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const ENDS: [&str; 5] = ["", "b", "c", "d", "\0"];

fn changes() -> impl Strategy<Value = Change> {
    let access = || prop::sample::select(vec![Access::Read, Access::Write, Access::ReadWrite]);
    prop_oneof![
        Just(Change::Enable),
        Just(Change::Disable),
        (0..3_usize).prop_map(Change::UserAdd),
        (0..3_usize).prop_map(Change::UserDelete),
        (0..3_usize).prop_map(Change::Password),
        (0..3_usize, 0..3_usize).prop_map(|(user, role)| Change::GrantRole(user, role)),
        (0..3_usize, 0..3_usize).prop_map(|(user, role)| Change::RevokeRole(user, role)),
        (0..3_usize).prop_map(Change::RoleAdd),
        (0..3_usize).prop_map(Change::RoleDelete),
        (0..3_usize, access(), 0..4_usize, 0..5_usize)
            .prop_map(|(role, access, key, end)| Change::Grant(role, access, key, end)),
        (0..3_usize, 0..4_usize, 0..5_usize).prop_map(|(role, key, end)| Change::Revoke(role, key, end)),
    ]
}

/// What etcd says, by relations instead of records.
#[derive(Debug, Default, Clone, PartialEq)]
struct Naive {
    enabled: bool,
    users: BTreeSet<usize>,
    roles: BTreeSet<usize>,
    has: BTreeSet<(usize, usize)>,
    permits: BTreeMap<(usize, usize, usize), Access>,
}

impl Naive {
    fn change(&mut self, change: &Change) -> Result<(), EtcdError> {
        use Change as C;
        use EtcdError as E;
        let user = |this: &Self, user: &usize| this.users.contains(user).then_some(()).ok_or(E::UserNotFound);
        let role = |this: &Self, role: &usize| this.roles.contains(role).then_some(()).ok_or(E::RoleNotFound);
        let protected =
            |this: &Self, which: bool| if this.enabled && which { Err(E::InvalidAuthMgmt) } else { Ok(()) };
        match change {
            C::Enable if self.enabled => {}
            C::Enable if !self.users.contains(&0) => return Err(E::RootUserNotExist),
            C::Enable if !self.has.contains(&(0, 0)) => return Err(E::RootRoleNotExist),
            C::Enable => self.enabled = true,
            C::Disable => self.enabled = false,
            C::UserAdd(name) => self.users.insert(*name).then_some(()).ok_or(E::UserAlreadyExists)?,
            C::UserDelete(name) => {
                protected(self, *name == 0)?;
                user(self, name)?;
                self.users.remove(name);
                self.has.retain(|(of, _)| of != name);
            }
            C::Password(name) => user(self, name)?,
            C::GrantRole(name, of) => {
                user(self, name)?;
                if *of != 0 {
                    role(self, of)?;
                }
                self.has.insert((*name, *of));
            }
            C::RevokeRole(name, of) => {
                protected(self, *name == 0 && *of == 0)?;
                user(self, name)?;
                self.has.remove(&(*name, *of)).then_some(()).ok_or(E::RoleNotGranted)?;
            }
            C::RoleAdd(name) => self.roles.insert(*name).then_some(()).ok_or(E::RoleAlreadyExists)?,
            C::RoleDelete(name) => {
                protected(self, *name == 0)?;
                role(self, name)?;
                self.roles.remove(name);
                self.has.retain(|(_, of)| of != name);
                self.permits.retain(|(of, _, _), _| of != name);
            }
            C::Grant(of, access, key, end) => {
                if !ENDS[*end].is_empty() && ENDS[*end] != "\0" && KEYS[*key] >= ENDS[*end] {
                    return Err(E::InvalidAuthMgmt);
                }
                role(self, of)?;
                self.permits.insert((*of, *key, *end), *access);
            }
            C::Revoke(of, key, end) => {
                role(self, of)?;
                self.permits.remove(&(*of, *key, *end)).map(drop).ok_or(E::PermissionNotGranted)?;
            }
        }
        Ok(())
    }

    /// Whether a user may read or write one key.
    fn may(&self, user: usize, writes: bool, one: &str) -> bool {
        let permits = |((role, key, end), access): (&(usize, usize, usize), &Access)| {
            let (key, end) = (KEYS[*key], ENDS[*end]);
            let holds = match end {
                "" => one == key,
                "\0" => one >= key,
                end => key <= one && one < end,
            };
            holds
                && self.has.contains(&(user, *role))
                && if writes { access.writes() } else { access.reads() }
        };
        self.has.contains(&(user, 0)) || self.permits.iter().any(permits)
    }
}

fn changed(state: &AuthState, change: &Change) -> Result<AuthState, EtcdError> {
    match change {
        Change::Enable => state.enable(),
        Change::Disable => Ok(state.disable()),
        Change::UserAdd(user) => state.user_add(USERS[*user], Some("h".to_owned())),
        Change::UserDelete(user) => state.user_delete(USERS[*user]),
        Change::Password(user) => state.user_change_password(USERS[*user], "i"),
        Change::GrantRole(user, role) => state.user_grant_role(USERS[*user], ROLES[*role]),
        Change::RevokeRole(user, role) => state.user_revoke_role(USERS[*user], ROLES[*role]),
        Change::RoleAdd(role) => state.role_add(ROLES[*role]),
        Change::RoleDelete(role) => state.role_delete(ROLES[*role]),
        Change::Grant(role, access, key, end) => {
            state.role_grant_permission(ROLES[*role], permission(*access, KEYS[*key], ENDS[*end]))
        }
        Change::Revoke(role, key, end) => {
            state.role_revoke_permission(ROLES[*role], KEYS[*key].as_bytes(), ENDS[*end].as_bytes())
        }
    }
}

proptest! {
    #[test]
    fn random_changes_have_the_outcomes_of_the_model(changes in prop::collection::vec(changes(), 1..40)) {
        let (mut state, mut naive) = (AuthState::default(), Naive::default());
        for change in &changes {
            let want = naive.clone().change(change);
            let got = changed(&state, change);
            prop_assert_eq!(got.as_ref().map(drop).map_err(|error| *error), want, "{:?}", change);
            let _ = naive.change(change);
            if let Ok(next) = got {
                let counts = next.revision == state.revision + 1;
                let mut same = state.clone();
                same.enabled = next.enabled;
                prop_assert!(counts || same == next);
                state = next;
            }
            prop_assert_eq!(&AuthState::from_json(state.to_json().as_bytes()).unwrap(), &state);
            prop_assert_eq!(state.enabled, naive.enabled);
            let mut enabled = state.clone();
            enabled.enabled = true;
            let rules = Rules::of(enabled);
            for (user, name) in USERS.iter().enumerate() {
                prop_assert_eq!(state.users.contains_key(*name), naive.users.contains(&user));
                let caller = rules.named(name);
                for key in ["a", "aa", "b", "c", "cz", "d", "e"] {
                    let reads = rules.may_read(Some(&caller), key.as_bytes(), b"").is_ok();
                    let writes = rules.may_write(Some(&caller), key.as_bytes(), b"").is_ok();
                    let want = (naive.may(user, false, key), naive.may(user, true, key));
                    prop_assert_eq!((reads, writes), want, "{} {}", name, key);
                }
            }
        }
    }
}
