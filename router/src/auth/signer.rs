//! Signs tokens with HMAC-SHA256, and draws the key.

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use kindred_router_core::auth::token::Token;

/// The length of a key.
const KEY_BYTES: usize = 32;

/// A new key; `None` if this machine has no random numbers.
#[must_use]
pub fn new_key() -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).ok()?;
    Some(key)
}

/// The text of a token.
#[must_use]
pub fn sign(key: &[u8], token: &Token) -> String {
    let signed = token.signed();
    let signature = hmac::sign(&hmac::Key::new(HMAC_SHA256, key), signed.as_bytes());
    Token::text(&signed, signature.as_ref())
}

/// Reads a token that was signed with this key; `None` for any other text. The time that it takes does not depend on how
/// much of a signature is right.
#[must_use]
pub fn read(key: &[u8], text: &str) -> Option<Token> {
    if key.len() < KEY_BYTES {
        return None;
    }
    let (signed, signature) = Token::parts(text)?;
    hmac::verify(&hmac::Key::new(HMAC_SHA256, key), signed.as_bytes(), &signature).ok()?;
    Token::read(signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_key_has_signed_and_what_was_changed_is_not_read() {
        let [key, other] = [(); 2].map(|()| new_key().unwrap());
        assert_ne!(key, other);
        let token = Token::new("ann", 7, 1000);
        let text = sign(&key, &token);
        assert_eq!(read(&key, &text), Some(token.clone()));
        assert_eq!(read(&other, &text), None);
        assert_eq!(read(&[], &sign(&[], &token)), None, "there is no key yet");
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(read(&key, &changed), None, "{changed}");
        }
        for end in 0..text.len() {
            assert_eq!(read(&key, &text[..end]), None);
        }
    }
}
