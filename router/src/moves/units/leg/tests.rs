use std::sync::Mutex;

use kindred_partition_config::ids::Term;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::unit::Unit;
use kindred_router_core::moves::step::UnitAt;
use tonic::Status;

use super::*;

const OWNER: StoreIx = StoreIx(0);
const FOLLOWER: StoreIx = StoreIx(1);

/// Two shards, of which the owner has a record in this state, and the calls that were made.
#[derive(Clone)]
struct TwoStores {
    owner: Option<pb::UnitState>,
    missing: Vec<i64>,
    made: Arc<Mutex<Vec<(StoreIx, Call)>>>,
    attached: Arc<Mutex<Vec<LeaseId>>>,
}

impl TwoStores {
    fn new(owner: Option<pb::UnitState>) -> Self {
        Self { owner, missing: Vec::new(), made: Arc::default(), attached: Arc::default() }
    }

    fn answer(&self, store: StoreIx, call: &Call) -> Made {
        match call {
            Call::Look(_) => {
                let record = self.owner.filter(|_| store == OWNER);
                let record = record.map(|state| pb::UnitRecord { state: state.into(), ..Default::default() });
                Made::Look(pb::LookResponse { record })
            }
            Call::Leases(_) => Made::Leases(pb::UnitLeasesResponse { ids: self.missing.clone() }),
            Call::Unseal(_) => Made::Unseal(pb::UnsealResponse {}),
            Call::Unfreeze(_) => Made::Unfreeze(pb::UnfreezeResponse {}),
            other => panic!("nobody asks for {other:?}"),
        }
    }

    async fn run(&self, name: StepName) -> Vec<Answer> {
        let call = UnitCall {
            at: UnitAt { leg: 0, transfer: 0 },
            unit: Unit::of_range(KeyRange::prefix("/registry/pods/".into())),
            term: Term(4),
            owner: StoreIdx(0),
            follower: StoreIdx(1),
            final_revision: Revision::ZERO,
            incarnations: (0, 0),
            epoch: Epoch::NONE,
        };
        let (rate, copied) = (Arc::new(Rate::new(0)), Arc::default());
        LegSteps { stores: self.clone(), id: MoveId(1), calls: vec![call], rate, copied }.run(name).await
    }

    fn made(&self) -> Vec<(StoreIx, Call)> {
        self.made.lock().unwrap().clone()
    }
}

fn unexpected<T>() -> Result<T, Status> {
    panic!("nobody asks for this")
}

impl UnitStores for TwoStores {
    type Copying = ();
    type Verifying = ();

    fn knows(&self, _: StoreIx) -> bool {
        true
    }

    fn name(&self, store: StoreIx) -> String {
        format!("s{}", store.0)
    }

    fn is_removed(&self, _: StoreIx) -> bool {
        false
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn clock_offset(&self, _: StoreIx) -> Option<i64> {
        None
    }

    fn generation(&self) -> Epoch {
        Epoch(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn since_1970(&self) -> Duration {
        Duration::ZERO
    }

    async fn pause(&self, _: Duration) {}

    async fn list(&self, _: StoreIx) -> Result<pb::UnitsListResponse, Status> {
        unexpected()
    }

    async fn together(
        &self,
        store: StoreIx,
        calls: pb::UnitCalls,
        _: bool,
    ) -> Result<pb::UnitAnswers, Status> {
        let calls = calls.calls.into_iter().filter_map(|call| call.call);
        let answer = |call| {
            let answer = self.answer(store, &call);
            self.made.lock().unwrap().push((store, call));
            pb::UnitAnswer { answer: Some(answer) }
        };
        Ok(pb::UnitAnswers { answers: calls.map(answer).collect(), incarnation: 1 })
    }

    async fn tails(&self, _: StoreIx, _: pb::TailsRequest) -> Result<pb::TailsResponse, Status> {
        unexpected()
    }

    async fn import(&self, _: StoreIx, _: pb::ImportRequest) -> Result<pb::ImportResponse, Status> {
        unexpected()
    }

    async fn copy(&self, _: StoreIx, _: pb::CopyRequest) -> Result<(), Status> {
        unexpected()
    }

    async fn next_copied(&self, _: StoreIx, (): &mut ()) -> Result<Option<pb::CopyResponse>, Status> {
        unexpected()
    }

    async fn verify(&self, _: StoreIx, _: pb::VerifyRequest) -> Result<(), Status> {
        unexpected()
    }

    async fn next_digest(&self, _: StoreIx, (): &mut ()) -> Result<Option<pb::VerifyResponse>, Status> {
        unexpected()
    }

    async fn attach_all(&self, leases: &[LeaseId], store: StoreIx) -> Result<(), Status> {
        assert_eq!(store, FOLLOWER);
        self.attached.lock().unwrap().extend(leases);
        Ok(())
    }

    async fn attach_again(&self, leases: &[LeaseId], store: StoreIx) -> Result<bool, Status> {
        self.attach_all(leases, store).await.map(|()| true)
    }

    fn copied(&self, _: u64, _: Duration) {}

    async fn at_etcd(_: &LegSteps<Self>, _: StepName) -> Option<Result<Each<Answer>, Failed>> {
        None
    }
}

/// Seed 2482 of the simulation: the meta store lost a decision behind which the owner had released its unit. A
/// coordinator in doubt had the follower unsealed, which then could not be opened, and lost the only copy with the next
/// crash.
#[tokio::test]
async fn a_follower_stays_sealed_while_the_owner_has_released_the_unit() {
    use pb::UnitState::{Dropping, Following, Frozen, Gone, Owned, Tracked};
    for released in [Following, Dropping, Gone] {
        let stores = TwoStores::new(Some(released));
        let refused = stores.run(StepName::Unseal).await;
        let Answer::Failed { reason } = &refused[0] else { panic!("{refused:?}") };
        assert!(reason.contains("kindred reconcile"), "{reason}");
        assert!(matches!(stores.made()[..], [(OWNER, Call::Look(_))]), "{:?}", stores.made());
        // The same behind an attempt that the record says was given up.
        let stores = TwoStores::new(Some(released));
        assert_eq!(stores.run(StepName::Unfreeze).await, [Answer::Done]);
        let made = stores.made();
        assert!(matches!(made[..], [(OWNER, Call::Unfreeze(_)), (OWNER, Call::Look(_))]), "{made:?}");
    }
    for owns in [None, Some(Owned), Some(Tracked), Some(Frozen)] {
        let stores = TwoStores::new(owns);
        assert_eq!(stores.run(StepName::Unseal).await, [Answer::Done]);
        let made = stores.made();
        assert!(matches!(made[..], [(OWNER, Call::Look(_)), (FOLLOWER, Call::Unseal(_))]), "{made:?}");
    }
}

#[tokio::test]
async fn a_shard_that_follows_names_the_leases_that_are_attached_to_it() {
    let stores = TwoStores { missing: vec![7, 9], ..TwoStores::new(None) };
    assert_eq!(stores.run(StepName::AttachLeases).await, [Answer::Done]);
    let made = stores.made();
    let asks = |(store, call): &(StoreIx, Call)| {
        *store == FOLLOWER && matches!(call, Call::Leases(leases) if leases.missing)
    };
    assert!(made.len() == 1 && asks(&made[0]), "nobody looks through the owner's keys: {made:?}");
    assert_eq!(*stores.attached.lock().unwrap(), [LeaseId(7), LeaseId(9)]);
}
