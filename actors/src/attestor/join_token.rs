//! `join_token`: the node shows a token that an operator has made for it (node-side 2.4). The server burns it with the first try.

use std::fmt;
use std::future::ready;
use std::rc::Rc;

use zeroize::Zeroizing;

use super::node::{Answer, Evidence, EvidenceError, NodeAttestor, Proof};

/// Type string of the attestor.
const NAME: &str = "join_token";
/// In the words of the reference.
const NO_TOKEN: &str = "join token was not provided";

/// Attestation by a token, once.
pub struct JoinToken {
    token: Option<Rc<Zeroizing<String>>>,
}

/// The token, for one attestation.
struct Shown(Rc<Zeroizing<String>>);

impl JoinToken {
    /// Takes the token as configured, white space around it removed. Without one, or with an empty one, the agent goes on with an SVID that
    /// is stored, but cannot attest.
    pub fn new(token: Option<String>) -> Self {
        let token = token.map(Zeroizing::new).map(Rc::new);
        Self {
            token: token.filter(|token| !token.is_empty()),
        }
    }
}

impl NodeAttestor for JoinToken {
    fn name(&self) -> &'static str {
        NAME
    }

    fn may_attest_again(&self) -> bool {
        false
    }

    fn prepare(self: Rc<Self>) -> Evidence {
        let shown = self.token.clone().map(Shown);
        Box::pin(ready(
            shown
                .map(|shown| Box::new(shown) as Box<dyn Proof>)
                .ok_or_else(|| EvidenceError::Unprepared(NO_TOKEN.to_owned())),
        ))
    }
}

impl Proof for Shown {
    fn attestor_name(&self) -> &'static str {
        NAME
    }

    fn payload(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    fn respond<'a>(&'a mut self, _: &'a [u8]) -> Answer<'a> {
        let unasked = "a join token is not challenged".to_owned();
        Box::pin(ready(Err(EvidenceError::Challenge(unasked))))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("has_token", &self.token.is_some())
            .finish()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "5f0c9a52-hush";

    async fn prepare(token: Option<&str>) -> Result<Box<dyn Proof>, EvidenceError> {
        Rc::new(JoinToken::new(token.map(str::to_owned)))
            .prepare()
            .await
    }

    #[tokio::test]
    async fn the_payload_is_the_token_itself() {
        let proof = prepare(Some(TOKEN)).await.unwrap();

        assert_eq!(proof.attestor_name(), "join_token");
        assert_eq!(proof.payload(), TOKEN.as_bytes());
    }

    #[tokio::test]
    async fn without_a_token_there_is_no_attestation() {
        for token in [None, Some("")] {
            let error = prepare(token).await.unwrap_err();

            assert_eq!(error.to_string(), "join token was not provided");
        }
    }

    #[tokio::test]
    async fn a_challenge_is_an_error() {
        let mut proof = prepare(Some(TOKEN)).await.unwrap();

        let error = proof.respond(b"{}").await.unwrap_err();

        assert!(matches!(error, EvidenceError::Challenge(_)), "{error}");
        assert!(!error.to_string().contains(TOKEN));
    }

    #[test]
    fn a_spent_token_is_no_way_in() {
        assert!(!JoinToken::new(Some(TOKEN.to_owned())).may_attest_again());
    }

    #[tokio::test]
    async fn debug_never_shows_the_token() {
        let attestor = JoinToken::new(Some(TOKEN.to_owned()));

        let shown = format!("{attestor:?} {:?}", prepare(Some(TOKEN)).await.unwrap());

        assert_eq!(shown, "JoinToken { has_token: true } Shown(…)");
    }
}
