//! Changes of users and roles, with etcd's conditions in etcd's order.
//!
//! Each function makes a new state of an old one. A change that changes nothing returns an equal state, which needs not be
//! written. [`AuthState::after`] makes the state to write.

use kindred_wire::error::EtcdError;

use super::document::{Access, AuthState, Permission, Role, User};
use super::{ROOT, ranges};

type Changed = Result<AuthState, EtcdError>;

impl AuthState {
    /// The state as it is written in place of `before`: one change later. `key` signs tokens if there is none yet.
    #[must_use]
    pub fn after(mut self, before: &Self, key: &[u8]) -> Self {
        self.change = before.change.saturating_add(1);
        if self.key.is_empty() {
            self.key = key.to_vec();
        }
        self
    }

    /// A change that counts, as all but [`AuthState::enable`] do.
    fn counted(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        next.revision = next.revision.saturating_add(1);
        change(&mut next);
        next
    }

    /// From now on, clients must say who they are.
    ///
    /// # Errors
    /// When there is no user `root` with the role `root`: nobody could change it back.
    pub fn enable(&self) -> Changed {
        if self.enabled {
            return Ok(self.clone());
        }
        let root = self.users.get(ROOT).ok_or(EtcdError::RootUserNotExist)?;
        if !root.roles.contains(ROOT) {
            return Err(EtcdError::RootRoleNotExist);
        }
        let mut next = self.clone();
        next.enabled = true;
        Ok(next)
    }

    /// Clients need not say any more who they are. Tokens end.
    #[must_use]
    pub fn disable(&self) -> Self {
        if !self.enabled {
            return self.clone();
        }
        self.counted(|next| {
            next.enabled = false;
            next.tokens_from = next.revision;
        })
    }

    /// Adds a user. Without a hash it cannot log in with a password.
    ///
    /// # Errors
    /// When the name is empty or taken.
    pub fn user_add(&self, name: &str, password: Option<String>) -> Changed {
        if name.is_empty() {
            return Err(EtcdError::UserEmpty);
        }
        if self.users.contains_key(name) {
            return Err(EtcdError::UserAlreadyExists);
        }
        Ok(self.counted(|next| {
            let user = User { password, roles: Default::default(), since: next.revision };
            next.users.insert(name.to_owned(), user);
        }))
    }

    /// Deletes a user. Its tokens end.
    ///
    /// # Errors
    /// When there is no such user, or it is `root` while clients must say who they are.
    pub fn user_delete(&self, name: &str) -> Changed {
        if self.enabled && name == ROOT {
            return Err(EtcdError::InvalidAuthMgmt);
        }
        self.user(name)?;
        Ok(self.counted(|next| {
            next.users.remove(name);
        }))
    }

    /// Gives a user another password, unless it has none at all. Its tokens end.
    ///
    /// # Errors
    /// When there is no such user.
    pub fn user_change_password(&self, name: &str, password: &str) -> Changed {
        self.user(name)?;
        Ok(self.counted(|next| {
            let revision = next.revision;
            if let Some(user) = next.users.get_mut(name) {
                if user.password.is_some() {
                    user.password = Some(password.to_owned());
                }
                user.since = revision;
            }
        }))
    }

    /// Gives a user a role. The role `root` need not exist.
    ///
    /// # Errors
    /// When there is no such user or role.
    pub fn user_grant_role(&self, name: &str, role: &str) -> Changed {
        let user = self.user(name)?;
        if role != ROOT {
            self.role(role)?;
        }
        if user.roles.contains(role) {
            return Ok(self.clone());
        }
        Ok(self.counted(|next| {
            if let Some(user) = next.users.get_mut(name) {
                user.roles.insert(role.to_owned());
            }
        }))
    }

    /// Takes a role from a user.
    ///
    /// # Errors
    /// When there is no such user, or it does not have the role, or it is `root`'s own while clients must say who they are.
    pub fn user_revoke_role(&self, name: &str, role: &str) -> Changed {
        if self.enabled && name == ROOT && role == ROOT {
            return Err(EtcdError::InvalidAuthMgmt);
        }
        if !self.user(name)?.roles.contains(role) {
            return Err(EtcdError::RoleNotGranted);
        }
        Ok(self.counted(|next| {
            if let Some(user) = next.users.get_mut(name) {
                user.roles.remove(role);
            }
        }))
    }

    /// Adds a role.
    ///
    /// # Errors
    /// When the name is empty or taken.
    pub fn role_add(&self, name: &str) -> Changed {
        if name.is_empty() {
            return Err(EtcdError::RoleEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(EtcdError::RoleAlreadyExists);
        }
        Ok(self.counted(|next| {
            next.roles.insert(name.to_owned(), Role::default());
        }))
    }

    /// Deletes a role, also from all users.
    ///
    /// # Errors
    /// When there is no such role, or it is `root` while clients must say who they are.
    pub fn role_delete(&self, name: &str) -> Changed {
        if self.enabled && name == ROOT {
            return Err(EtcdError::InvalidAuthMgmt);
        }
        self.role(name)?;
        Ok(self.counted(|next| {
            next.roles.remove(name);
            for user in next.users.values_mut() {
                user.roles.remove(name);
            }
        }))
    }

    /// Gives a role a permission, in place of the one that it may have for the same range.
    ///
    /// # Errors
    /// When there is no permission, no key, no such role, or the range is empty.
    pub fn role_grant_permission(&self, name: &str, permission: Option<Permission>) -> Changed {
        let permission = permission.ok_or(EtcdError::PermissionNotGiven)?;
        if !ranges::is_valid(&permission.key, &permission.range_end) {
            return Err(EtcdError::InvalidAuthMgmt);
        }
        self.role(name)?;
        Ok(self.counted(|next| {
            let Some(role) = next.roles.get_mut(name) else { return };
            let of_range =
                |has: &&mut Permission| has.key == permission.key && has.range_end == permission.range_end;
            match role.permissions.iter_mut().find(of_range) {
                Some(has) => has.access = permission.access,
                None => {
                    let at = role.permissions.partition_point(|has| has.key <= permission.key);
                    role.permissions.insert(at, permission);
                }
            }
        }))
    }

    /// Takes a permission from a role.
    ///
    /// # Errors
    /// When there is no such role, or it has none for exactly this range.
    pub fn role_revoke_permission(&self, name: &str, key: &[u8], range_end: &[u8]) -> Changed {
        let of_range = |has: &Permission| has.key == key && has.range_end == range_end;
        if !self.role(name)?.permissions.iter().any(of_range) {
            return Err(EtcdError::PermissionNotGranted);
        }
        Ok(self.counted(|next| {
            if let Some(role) = next.roles.get_mut(name) {
                role.permissions.retain(|has| !of_range(has));
            }
        }))
    }

    /// A user.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn user(&self, name: &str) -> Result<&User, EtcdError> {
        self.users.get(name).ok_or(EtcdError::UserNotFound)
    }

    /// A role.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn role(&self, name: &str) -> Result<&Role, EtcdError> {
        self.roles.get(name).ok_or(EtcdError::RoleNotFound)
    }

    /// The permissions of a role as they are shown: `root` has all, whatever it was granted.
    ///
    /// # Errors
    /// When there is no such role.
    pub fn permissions_shown(&self, name: &str) -> Result<Vec<Permission>, EtcdError> {
        let role = self.role(name)?;
        if name == ROOT {
            return Ok(vec![Permission { access: Access::ReadWrite, key: Vec::new(), range_end: vec![0] }]);
        }
        Ok(role.permissions.clone())
    }
}
