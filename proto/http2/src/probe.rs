//! When a PING is answered that measures the connection's bandwidth.
//!
//! A client of grpc-go sends such a PING with the first DATA that it receives while none is under way
//! (`internal/transport/bdp_estimator.go`), to learn whether larger windows would help. With one short answer at a time
//! that is a PING for each call: as much to receive and to send again as the call itself. But the client makes its
//! windows larger only if two thirds of them arrived while a PING was under way. So the answer is put off until
//! [`crate::Limits::probe_bytes`] were sent since the last one, or the owner, who has a clock, says that it is time. Until
//! then the client sends no other.

use crate::{
    connection::Connection,
    frame::{flag, kind},
};

/// The payload of such a PING.
pub(crate) const PROBE: [u8; 8] = [2, 4, 16, 16, 9, 14, 7, 7];

#[derive(Debug, Default)]
pub(crate) struct Probe {
    /// If set, a PING waits for its answer.
    waits: bool,
    /// All bytes that had been sent when the last was answered.
    answered_at: u64,
}

impl Connection {
    /// Whether a PING of the client waits for [`Connection::answer_probe`].
    #[must_use]
    pub fn has_probe(&self) -> bool {
        self.probe.waits
    }

    /// Answers the PING that waits, if one does. The owner calls this a second after [`Connection::has_probe`] at the
    /// latest.
    pub fn answer_probe(&mut self) {
        if std::mem::take(&mut self.probe.waits) {
            self.sender.frame(kind::PING, flag::ACK, 0, &PROBE);
            self.sender.output.mark_control();
            self.probe.answered_at = self.sender.output.total();
        }
    }

    /// Takes a PING; returns whether it is a probe, which is answered later.
    pub(crate) fn is_probe(&mut self, payload: [u8; 8]) -> bool {
        if payload != PROBE || self.limits.probe_bytes == 0 {
            return false;
        }
        // A client that sends another all the same has each answered.
        self.answer_probe();
        self.probe.waits = true;
        self.measure();
        true
    }

    /// Answers the PING that waits if enough was sent to be measured.
    pub(crate) fn measure(&mut self) {
        if self.probe.waits
            && self.sender.output.total() - self.probe.answered_at >= self.limits.probe_bytes as u64
        {
            self.answer_probe();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        limits::Limits,
        support::{Peer, frame},
    };

    fn peer(probe_bytes: usize) -> Peer {
        Peer::new(Limits { probe_bytes, ..Limits::default() }, &[])
    }

    fn answers(peer: &mut Peer) -> usize {
        let sent = peer.sent();
        sent.iter().filter(|(head, payload)| head.kind == kind::PING && payload[..] == PROBE).count()
    }

    #[test]
    fn a_probe_is_answered_when_the_owner_says_so() {
        let mut peer = peer(1000);
        peer.take(&frame(kind::PING, 0, 0, &PROBE)).unwrap();
        assert!(peer.connection.has_probe() && answers(&mut peer) == 0);
        let stream = peer.request(1, true);
        peer.connection.answer(stream, &[Bytes::from_static(b"short")]).unwrap();
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (0, true));
        peer.connection.answer_probe();
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (1, false));
        peer.connection.answer_probe();
        assert_eq!(answers(&mut peer), 0);
    }

    #[test]
    fn a_probe_is_answered_when_there_is_something_to_measure() {
        let mut peer = peer(1000);
        let long = || [Bytes::from(vec![1; 2000])];
        // The answer came first.
        let stream = peer.request(1, true);
        peer.connection.answer(stream, &long()).unwrap();
        assert_eq!(answers(&mut peer), 0);
        peer.take(&frame(kind::PING, 0, 0, &PROBE)).unwrap();
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (1, false));
        // The probe came first.
        peer.take(&frame(kind::PING, 0, 0, &PROBE)).unwrap();
        let stream = peer.request(3, true);
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (0, true));
        peer.connection.answer(stream, &long()).unwrap();
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (1, false));
    }

    #[test]
    fn every_ping_is_answered_once() {
        let mut peer = peer(1000);
        for _ in 0..5 {
            peer.take(&frame(kind::PING, 0, 0, &PROBE)).unwrap();
        }
        assert_eq!(answers(&mut peer), 4);
        peer.connection.answer_probe();
        assert_eq!(answers(&mut peer), 1);
    }

    #[test]
    fn an_owner_without_a_clock_has_all_answered_at_once() {
        let mut peer = peer(0);
        peer.take(&frame(kind::PING, 0, 0, &PROBE)).unwrap();
        assert_eq!((answers(&mut peer), peer.connection.has_probe()), (1, false));
    }
}
