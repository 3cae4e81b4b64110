//! Hashes and checks passwords with bcrypt, which takes a core for a tenth of a second by design: on threads for such work,
//! a few at a time, and with a bounded queue, so that logins cannot keep the router from all else.

use std::sync::Arc;
use std::time::Duration;

use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tokio::sync::Semaphore;
use tonic::Status;

/// bcrypt's cost, etcd's default (`--bcrypt-cost`).
const COST: u32 = 10;
/// How many run at a time.
const AT_ONCE: usize = 2;
/// How many are under way or wait; further ones are refused.
const PLACES: usize = 64;
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// bcrypt takes so many bytes of a password.
const BYTES_MAX: usize = 72;

/// The threads' turns.
#[derive(Debug, Clone)]
pub struct Passwords {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(PLACES)), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Passwords {
    /// The hash of a password.
    ///
    /// # Errors
    /// When it is too long, or too many others wait.
    pub async fn hash(&self, password: String) -> Result<String, Status> {
        if password.len() > BYTES_MAX {
            // etcd's text, which comes from its library.
            return Err(Status::unknown("bcrypt: password length exceeds 72 bytes"));
        }
        let hashed = self.run(move || bcrypt::hash(password, COST)).await?;
        hashed.map_err(|error| Status::internal(format!("kindred: the password was not hashed: {error}")))
    }

    /// Whether a password has a hash. A hash that cannot be read is no password's.
    ///
    /// # Errors
    /// When too many others wait.
    pub async fn is_right(&self, password: String, hash: String) -> Result<bool, Status> {
        Ok(self.run(move || bcrypt::verify(password, &hash)).await?.unwrap_or(false))
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let many = || grpc::status(EtcdError::TooManyRequests);
        let place = self.places.clone().try_acquire_owned().map_err(|_| many())?;
        let turn = tokio::time::timeout(PATIENCE, self.turns.clone().acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(many)?;
        // The work goes on when its client goes away, and so holds its turn until it is done.
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop((turn, place));
            done
        });
        working.await.map_err(|error| Status::internal(format!("kindred: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_has_its_hash_and_no_other_has() {
        let passwords = Passwords::default();
        let hash = passwords.hash("a".to_owned()).await.unwrap();
        assert!(hash.starts_with("$2b$10$"), "{hash}");
        let right = |password: &str, hash: &str| passwords.is_right(password.to_owned(), hash.to_owned());
        assert!(right("a", &hash).await.unwrap());
        assert!(!right("b", &hash).await.unwrap() && !right("", &hash).await.unwrap());
        assert!(!right("", "").await.unwrap() && !right("a", "x").await.unwrap());
        // The form of etcd's library.
        assert!(right("a", &hash.replacen("$2b$", "$2a$", 1)).await.unwrap());
        assert!(passwords.hash("x".repeat(73)).await.is_err());
    }

    #[tokio::test]
    async fn further_ones_are_refused_while_all_places_are_taken() {
        let passwords = Passwords::default();
        let places = passwords.places.clone().acquire_many_owned(64).await.unwrap();
        let refused = passwords.is_right("a".to_owned(), String::new()).await.unwrap_err();
        assert_eq!(grpc::etcd_error(&refused), Some(EtcdError::TooManyRequests));
        drop(places);
        assert!(!passwords.is_right("a".to_owned(), String::new()).await.unwrap());
    }
}
