//! Who reads and writes keys, where etcd's users and roles are in force.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use kindred_database::reading::timed;
use kindred_proto::etcdserverpb::{self as pb, auth_client::AuthClient};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status, transport::Channel};

use crate::admin::failure::Failure;

/// How often a new token is asked for: an etcd forgets one that was not used for five minutes, and a user may be changed.
const RENEW: Duration = Duration::from_secs(60);

/// The user of the etcd API.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Login {
    /// The user of the etcd API, where users and roles are in force. It must be allowed to read (or write) all keys that are meant.
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    pub user: Option<String>,
    /// A file with the user's password, which other users of this machine do not see.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

impl Login {
    /// Name and password; `None` without a user.
    fn credentials(&self) -> Result<Option<pb::AuthenticateRequest>, Failure> {
        let Some(user) = self.user.as_deref() else { return Ok(None) };
        let (name, password) = match (user.split_once(':'), &self.password_file) {
            (Some((name, password)), None) => (name, password.to_owned()),
            (None, Some(file)) => {
                let read = std::fs::read_to_string(file);
                let read = read.map_err(|error| {
                    Failure::Usage(format!("--password-file {}: {error}", file.display()))
                })?;
                (user, read.trim_end_matches(['\r', '\n']).to_owned())
            }
            (Some(_), Some(_)) => {
                return Err(Failure::Usage(
                    "--password-file: --user has a password too; leave out one of them".to_owned(),
                ));
            }
            (None, None) => {
                return Err(Failure::Usage(format!(
                    "--user {user}: write NAME:PASSWORD, or give --password-file"
                )));
            }
        };
        Ok(Some(pb::AuthenticateRequest { name: name.to_owned(), password }))
    }
}

type Shown = RwLock<Option<MetadataValue<Ascii>>>;

/// Shows the token of a user with every call.
#[derive(Debug, Clone, Default)]
pub struct Token(Arc<Shown>);

impl Token {
    /// Logs in, and again from time to time as long as the token is in use. Without a user nothing is shown.
    ///
    /// # Errors
    /// When the flags do not fit each other; and what the etcd says of the user.
    pub async fn of(login: &Login, channel: Channel) -> Result<Result<Self, Status>, Failure> {
        let token = Self::default();
        let Some(credentials) = login.credentials()? else { return Ok(Ok(token)) };
        let client = AuthClient::new(channel);
        match renew(client.clone(), &credentials, &token.0).await {
            Ok(()) => {}
            // As with etcdctl, a user is no error where nobody is asked for one.
            Err(status) if grpc::etcd_error(&status) == Some(EtcdError::AuthNotEnabled) => {
                return Ok(Ok(token));
            }
            Err(status) => return Ok(Err(status)),
        }
        tokio::spawn(keep(client, credentials, Arc::downgrade(&token.0)));
        Ok(Ok(token))
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

async fn renew(
    mut client: AuthClient<Channel>,
    credentials: &pb::AuthenticateRequest,
    shown: &Shown,
) -> Result<(), Status> {
    let token = client.authenticate(timed(credentials.clone())).await?.into_inner().token;
    let token = token.parse().map_err(|_| Status::internal("the token is no text"))?;
    *shown.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
    Ok(())
}

async fn keep(client: AuthClient<Channel>, credentials: pb::AuthenticateRequest, shown: Weak<Shown>) {
    loop {
        tokio::time::sleep(RENEW).await;
        let Some(shown) = shown.upgrade() else { return };
        // The token that is there is shown until it is refused.
        let _ = renew(client.clone(), &credentials, &shown).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: Option<&str>, file: Option<&str>) -> Login {
        Login { user: user.map(str::to_owned), password_file: file.map(PathBuf::from) }
    }

    #[test]
    fn a_password_is_in_the_flag_or_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "of:file\n").unwrap();
        let path = file.path().to_str();
        assert_eq!(login(None, None).credentials().unwrap(), None);
        for (given, name, password) in
            [(login(Some("root:a:b"), None), "root", "a:b"), (login(Some("root"), path), "root", "of:file")]
        {
            let found = given.credentials().unwrap().unwrap();
            assert_eq!((found.name.as_str(), found.password.as_str()), (name, password));
        }
        for (wrong, flag) in [
            (login(Some("root"), None), "--user root"),
            (login(Some("root:a"), path), "--password-file"),
            (login(Some("root"), Some("/nowhere/at/all")), "/nowhere/at/all"),
        ] {
            let Err(Failure::Usage(why)) = wrong.credentials() else { panic!("{wrong:?}") };
            assert!(why.contains(flag), "{why}");
        }
    }
}
