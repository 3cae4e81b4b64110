//! What callers may do, by one state of users and roles.

use std::collections::HashMap;
use std::sync::Arc;

use kindred_wire::error::EtcdError;

use super::document::{Access, AuthState, Permission, ROOT, User};
use super::methods::Who;
use super::ranges::Ranges;
use super::token::Token;

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name of the user, which may have been deleted since.
    pub user: Arc<str>,
    /// The revision by which it was recognised.
    pub revision: u64,
}

/// What a token is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Worth {
    /// It is this caller's.
    Good(Caller),
    /// A later state made it, which may have the user.
    Ahead,
    /// Nothing.
    Nothing,
}

/// The keys of a user.
#[derive(Debug, Default)]
struct Keys {
    reads: Ranges,
    writes: Ranges,
}

/// A state of users and roles, ready for requests.
#[derive(Debug)]
pub struct Rules {
    state: AuthState,
    keys: HashMap<String, Keys>,
}

impl Rules {
    /// Those of a state.
    #[must_use]
    pub fn of(state: AuthState) -> Self {
        let keys_of = |user: &User| {
            let permissions = || {
                let roles = user.roles.iter().filter_map(|role| state.roles.get(role));
                roles.flat_map(|role| &role.permissions)
            };
            let with = |has: fn(Access) -> bool| {
                Ranges::of(permissions().filter(|permission: &&Permission| has(permission.access)))
            };
            Keys { reads: with(Access::reads), writes: with(Access::writes) }
        };
        let keys = state.users.iter().map(|(name, user)| (name.clone(), keys_of(user))).collect();
        Self { state, keys }
    }

    /// What they are made of.
    #[must_use]
    pub fn state(&self) -> &AuthState {
        &self.state
    }

    /// Whether callers must say who they are.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.state.enabled
    }

    /// The caller who is named by a certificate.
    #[must_use]
    pub fn named(&self, user: &str) -> Caller {
        Caller { user: user.into(), revision: self.state.revision }
    }

    /// What a token is worth whose signature is right; `now` in seconds since 1970.
    #[must_use]
    pub fn worth(&self, token: &Token, now: u64) -> Worth {
        if token.expires <= now || !self.is_on() {
            return Worth::Nothing;
        }
        if token.revision > self.state.revision {
            return Worth::Ahead;
        }
        match self.state.users.get(&token.user) {
            Some(user) if token.revision >= user.since.max(self.state.tokens_from) => {
                Worth::Good(self.named(&token.user))
            }
            _ => Worth::Nothing,
        }
    }

    /// Whether a caller may call a method at all; what it may ask there is checked by the method.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub fn may_call(&self, who: Who, caller: Option<&Caller>) -> Result<(), EtcdError> {
        match who {
            Who::Anyone | Who::Checked => Ok(()),
            Who::User => self.is_user(caller),
            Who::Root => self.is_root(caller),
        }
    }

    /// Checks that somebody calls.
    ///
    /// # Errors
    /// etcd's, if nobody does.
    pub fn is_user(&self, caller: Option<&Caller>) -> Result<(), EtcdError> {
        if self.is_on() && caller.is_none() { Err(EtcdError::UserEmpty) } else { Ok(()) }
    }

    /// Checks that a caller has the role `root`.
    ///
    /// # Errors
    /// etcd's, if it does not.
    pub fn is_root(&self, caller: Option<&Caller>) -> Result<(), EtcdError> {
        if !self.is_on() {
            return Ok(());
        }
        let caller = caller.ok_or(EtcdError::UserEmpty)?;
        match self.state.user(&caller.user)?.roles.contains(ROOT) {
            true => Ok(()),
            false => Err(EtcdError::PermissionDenied),
        }
    }

    /// Checks that a caller may read these keys.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub fn may_read(&self, caller: Option<&Caller>, key: &[u8], range_end: &[u8]) -> Result<(), EtcdError> {
        self.may(caller, |keys| keys.reads.cover(key, range_end))
    }

    /// Checks that a caller may write these keys.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub fn may_write(&self, caller: Option<&Caller>, key: &[u8], range_end: &[u8]) -> Result<(), EtcdError> {
        self.may(caller, |keys| keys.writes.cover(key, range_end))
    }

    fn may(&self, caller: Option<&Caller>, covers: impl FnOnce(&Keys) -> bool) -> Result<(), EtcdError> {
        if !self.is_on() {
            return Ok(());
        }
        let caller = caller.ok_or(EtcdError::UserEmpty)?;
        if caller.revision < self.state.revision {
            return Err(EtcdError::AuthOldRevision);
        }
        let user = self.state.users.get(&*caller.user).ok_or(EtcdError::PermissionDenied)?;
        if user.roles.contains(ROOT) || self.keys.get(&*caller.user).is_some_and(covers) {
            return Ok(());
        }
        Err(EtcdError::PermissionDenied)
    }

    /// Checks that a caller may see a user: `root` sees all, others themselves.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub fn may_see_user(&self, caller: Option<&Caller>, name: &str) -> Result<(), EtcdError> {
        self.is_root(caller).or_else(|refused| match caller {
            Some(caller) if &*caller.user == name => Ok(()),
            // As in etcd, whose caller without a name has this one. No user has it.
            None if name.is_empty() => Ok(()),
            _ => Err(refused),
        })
    }

    /// Checks that a caller may see a role: `root` sees all, others their own.
    ///
    /// # Errors
    /// etcd's, if it may not.
    pub fn may_see_role(&self, caller: Option<&Caller>, name: &str) -> Result<(), EtcdError> {
        self.is_root(caller).or_else(|refused| {
            let user = caller.and_then(|caller| self.state.users.get(&*caller.user));
            match user {
                Some(user) if user.roles.contains(name) => Ok(()),
                _ => Err(refused),
            }
        })
    }
}
