//! The rules in use. While clients need not say who they are, a call costs one look at them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use kindred_router_core::auth::methods::Who;
use kindred_router_core::auth::rules::Worth;
use kindred_router_core::auth::{AuthState, Caller, Rules};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::refusal::KindredError;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

use super::credentials::Credentials;
use super::signer;

/// How long a call waits for rules that another router has made, and that its token names.
const AHEAD_MAX: Duration = Duration::from_secs(2);

/// What is known of users and roles.
#[derive(Debug)]
enum Known {
    /// Clients need not say who they are.
    Off(Arc<Rules>),
    On(Arc<Rules>),
    /// Nobody may do anything, for this reason.
    Nothing(String),
}

/// Whom the router lets in.
#[derive(Debug)]
pub struct Gate {
    known: ArcSwap<Known>,
    /// Held by who changes what is known.
    changing: Mutex<()>,
    changed: watch::Sender<()>,
}

impl Gate {
    /// A gate that lets nobody in before it knows whom.
    #[must_use]
    pub fn closed(why: &str) -> Arc<Self> {
        let known = ArcSwap::from_pointee(Known::Nothing(why.to_owned()));
        Arc::new(Self { known, changing: Mutex::default(), changed: watch::Sender::default() })
    }

    /// The gate of a router without users.
    #[must_use]
    pub fn open() -> Arc<Self> {
        let gate = Self::closed("");
        gate.take(AuthState::default());
        gate
    }

    /// Takes a state into use unless it is older than the one in use. Returns whether it is another one.
    pub fn take(&self, state: AuthState) -> bool {
        let _changing = self.changing.lock();
        if let Known::Off(rules) | Known::On(rules) = &**self.known.load() {
            let known = rules.state();
            if state.change < known.change || state == *known {
                return false;
            }
            if known.enabled != state.enabled {
                tracing::info!(
                    enabled = state.enabled,
                    revision = state.revision,
                    "authentication of clients"
                );
            }
        } else if state.enabled {
            tracing::info!(enabled = true, revision = state.revision, "authentication of clients");
        }
        let rules = Arc::new(Rules::of(state));
        self.known.store(Arc::new(if rules.is_on() { Known::On(rules) } else { Known::Off(rules) }));
        self.changed.send_replace(());
        true
    }

    /// Lets nobody in any more, because nothing is known.
    pub fn close(&self, why: &str) {
        let _changing = self.changing.lock();
        if !matches!(&**self.known.load(), Known::Nothing(before) if before == why) {
            tracing::error!(why, "clients are refused, because who may do what is not known");
            self.known.store(Arc::new(Known::Nothing(why.to_owned())));
            self.changed.send_replace(());
        }
    }

    /// Whether clients need not say who they are.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(&**self.known.load(), Known::Off(_))
    }

    /// The rules, whether or not clients must say who they are.
    ///
    /// # Errors
    /// When they are not known.
    pub fn rules(&self) -> Result<Arc<Rules>, Status> {
        match &**self.known.load() {
            Known::Off(rules) | Known::On(rules) => Ok(rules.clone()),
            Known::Nothing(why) => Err(not_known(why)),
        }
    }

    /// Lets a call in; `None` while clients need not say who they are. What it may do is asked of what this returns.
    ///
    /// # Errors
    /// When its token is not good, or nothing is known.
    pub async fn enter(&self, credentials: impl FnOnce() -> Credentials) -> Result<Option<Entered>, Status> {
        let rules = match &**self.known.load() {
            Known::Off(_) => return Ok(None),
            Known::On(rules) => rules.clone(),
            Known::Nothing(why) => return Err(not_known(why)),
        };
        let credentials = credentials();
        match recognise(&rules, &credentials) {
            Ok(caller) => Ok(Some(Entered { rules, caller })),
            Err(Unrecognised::Ahead) => {
                self.settle(&credentials).await;
                self.enter_now(&credentials)
            }
            Err(Unrecognised::Never) => Err(grpc::status(EtcdError::InvalidAuthToken)),
        }
    }

    /// As [`Gate::enter`], of a call that does not wait.
    ///
    /// # Errors
    /// As there.
    pub fn enter_now(&self, credentials: &Credentials) -> Result<Option<Entered>, Status> {
        let rules = self.rules()?;
        if !rules.is_on() {
            return Ok(None);
        }
        match recognise(&rules, credentials) {
            Ok(caller) => Ok(Some(Entered { rules, caller })),
            Err(_) => Err(grpc::status(EtcdError::InvalidAuthToken)),
        }
    }

    /// Waits a little for rules that a token names and that this router has not heard of.
    pub async fn settle(&self, credentials: &Credentials) {
        let mut changed = self.changed.subscribe();
        let settled = async {
            while let Known::On(rules) = &*self.known.load_full()
                && matches!(recognise(rules, credentials), Err(Unrecognised::Ahead))
                && changed.changed().await.is_ok()
            {}
        };
        let _ = tokio::time::timeout(AHEAD_MAX, settled).await;
    }

    /// Checks that a call may call a method.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub async fn may_call(&self, who: Who, credentials: impl FnOnce() -> Credentials) -> Result<(), Status> {
        if matches!(who, Who::Anyone | Who::Checked) {
            return Ok(());
        }
        match self.enter(credentials).await? {
            None => Ok(()),
            Some(Entered { rules, caller }) => rules.may_call(who, caller.as_ref()).map_err(grpc::status),
        }
    }

    /// Refuses the answer to a read that was permitted by rules that are not in use any more, as etcd does.
    ///
    /// # Errors
    /// etcd's; clients ask again.
    pub fn is_as_it_was(&self, entered: &Entered) -> Result<(), Status> {
        if self.rules()?.state().revision == entered.rules.state().revision {
            return Ok(());
        }
        Err(grpc::status(EtcdError::AuthOldRevision))
    }
}

/// A call that was let in, and the rules by which it is judged.
#[derive(Debug, Clone)]
pub struct Entered {
    pub rules: Arc<Rules>,
    /// `None` if it does not say who calls.
    pub caller: Option<Caller>,
}

impl Entered {
    /// Whether it may do everything.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.rules.is_root(self.caller.as_ref()).is_ok()
    }

    /// Checks that somebody calls.
    ///
    /// # Errors
    /// etcd's, if nobody does.
    pub fn is_user(&self) -> Result<(), Status> {
        self.rules.is_user(self.caller.as_ref()).map_err(grpc::status)
    }
}

/// Why a caller is not recognised.
enum Unrecognised {
    /// Later rules may recognise it.
    Ahead,
    Never,
}

/// The caller with these credentials. A token counts before a certificate, also one that is not good.
fn recognise(rules: &Rules, credentials: &Credentials) -> Result<Option<Caller>, Unrecognised> {
    let Some(text) = &credentials.token else {
        return Ok(credentials.common_name.as_deref().map(|name| rules.named(name)));
    };
    let token = signer::read(&rules.state().key, text).ok_or(Unrecognised::Never)?;
    match rules.worth(&token, now()) {
        Worth::Good(caller) => Ok(Some(caller)),
        Worth::Ahead => Err(Unrecognised::Ahead),
        Worth::Nothing => Err(Unrecognised::Never),
    }
}

/// In seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn not_known(why: &str) -> Status {
    grpc::refusal(&KindredError::NotReady { waiting_for: format!("users and roles: {why}") })
}

#[cfg(test)]
mod tests {
    use kindred_router_core::auth::ROOT;
    use kindred_router_core::auth::token::Token;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn enabled() -> AuthState {
        let none = AuthState::default();
        let state = none.user_add(ROOT, Some("h".to_owned())).unwrap().user_grant_role(ROOT, ROOT).unwrap();
        state.user_add("ann", Some("h".to_owned())).unwrap().enable().unwrap().after(&none, &KEY)
    }

    fn with_token(state: &AuthState, user: &str) -> Credentials {
        let token = signer::sign(&KEY, &Token::new(user, state.revision, now()));
        Credentials { token: Some(token), common_name: None }
    }

    fn message<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[tokio::test]
    async fn nobody_gets_in_before_anything_is_known() {
        let gate = Gate::closed("not heard yet");
        assert!(!gate.is_off());
        let refused = message(gate.enter(Credentials::default).await);
        assert!(refused.contains("users and roles: not heard yet"), "{refused}");
        assert!(gate.may_call(Who::User, Credentials::default).await.is_err());
        gate.take(AuthState::default());
        assert!(gate.is_off() && gate.enter(Credentials::default).await.unwrap().is_none());
        gate.close("a later version's");
        assert!(gate.enter(Credentials::default).await.is_err());
    }

    #[tokio::test]
    async fn a_token_counts_before_a_certificate() {
        let state = enabled();
        let gate = Gate::open();
        gate.take(state.clone());
        let user = |credentials: Credentials| {
            gate.enter_now(&credentials)
                .map(|entered| entered.unwrap().caller.map(|caller| caller.user.to_string()))
        };
        assert_eq!(user(Credentials::default()).unwrap(), None);
        assert_eq!(user(with_token(&state, "ann")).unwrap().as_deref(), Some("ann"));
        let certified = Credentials { token: None, common_name: Some("ann".into()) };
        assert_eq!(user(certified.clone()).unwrap().as_deref(), Some("ann"));
        let both = Credentials { common_name: Some("ann".into()), ..with_token(&state, ROOT) };
        assert_eq!(user(both).unwrap().as_deref(), Some(ROOT));
        let bad = Credentials { token: Some(String::new()), ..certified };
        assert_eq!(message(user(bad)), EtcdError::InvalidAuthToken.message());
        let (gate, state) = (&gate, &state);
        let may = |who, user: &'static str| gate.may_call(who, move || with_token(state, user));
        assert!(may(Who::Root, ROOT).await.is_ok() && may(Who::User, "ann").await.is_ok());
        assert_eq!(message(may(Who::Root, "ann").await), EtcdError::PermissionDenied.message());
        let anonymous = gate.may_call(Who::User, Credentials::default).await;
        assert_eq!(message(anonymous), EtcdError::UserEmpty.message());
    }

    #[tokio::test]
    async fn an_older_state_is_not_taken_and_a_read_by_old_rules_is_refused() {
        let gate = Gate::open();
        let first = enabled();
        let second = first.role_add("r").unwrap().after(&first, &KEY);
        gate.take(first.clone());
        let entered = gate.enter_now(&with_token(&first, "ann")).unwrap().unwrap();
        assert!(gate.is_as_it_was(&entered).is_ok());
        assert!(gate.take(second.clone()) && !gate.take(second.clone()) && !gate.take(first.clone()));
        assert!(!gate.take(AuthState::default()), "nobody turns it off by losing the document");
        assert_eq!(message(gate.is_as_it_was(&entered)), EtcdError::AuthOldRevision.message());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_of_later_rules_waits_for_them() {
        let gate = Gate::open();
        let first = enabled();
        let second = first.user_add("bob", Some("h".to_owned())).unwrap().after(&first, &KEY);
        gate.take(first);
        let late = gate.enter(|| with_token(&second, "bob")).await;
        assert_eq!(message(late), EtcdError::InvalidAuthToken.message());
        let entering = tokio::spawn({
            let (gate, second) = (gate.clone(), second.clone());
            async move { gate.enter(|| with_token(&second, "bob")).await }
        });
        tokio::task::yield_now().await;
        assert!(!entering.is_finished());
        gate.take(second);
        assert_eq!(&*entering.await.unwrap().unwrap().unwrap().caller.unwrap().user, "bob");
    }
}
