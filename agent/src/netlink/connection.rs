//! Request and answer over one routing socket.
//!
//! The crates' own event loop is not used for this: it hides the flags of the closing message (an interrupted dump is
//! announced there), drops what it cannot decode, and starts a second dump while one runs, which the kernel answers
//! with EBUSY.

use std::io;

use rtnetlink::{
    packet_core::{
        DecodeError, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE,
        NLMSG_ERROR, NetlinkBuffer, NetlinkMessage, NlasIterator, parse_i32, parse_string, parse_u32,
    },
    packet_route::RouteNetlinkMessage,
    sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE},
};

/// The kernel never fills more than 32 KiB of a dump into one datagram; other answers are smaller.
pub(super) const DATAGRAM_BYTES: usize = 64 * 1024;

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// NLMSGERR_ATTR_MSG: the kernel's sentence in an extended acknowledgement.
const EXTENDED_ACK_MESSAGE: u16 = 1;

/// One message of an answer.
pub(super) struct Frame<'a> {
    /// RTM_*
    pub kind: u16,
    /// What follows the netlink header.
    pub payload: &'a [u8],
}

/// How an exchange can fail.
#[derive(Debug)]
pub(super) enum ExchangeError {
    Refused {
        errno: i32,
        message: Option<String>,
    },
    /// The tables changed while they were read.
    Interrupted,
    Io(io::Error),
    Undecodable(DecodeError),
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<DecodeError> for ExchangeError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// The kernel's routing socket, one request at a time.
pub(super) struct Connection {
    socket: TokioSocket,
    sequence: u32,
    /// A request was sent and its answer not read to the end (the caller stopped waiting).
    unanswered: bool,
    buffer: Vec<u8>,
}

/// Whether the answer goes on behind this datagram.
enum Answer {
    Complete,
    Continues,
}

impl Connection {
    /// In the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind_auto()?;
        socket.socket_ref().connect(&SocketAddr::new(0, 0))?;
        // strict: the kernel filters dumps by table and family instead of ignoring what was asked (Linux 4.20)
        socket.socket_ref().set_netlink_get_strict_chk(true)?;
        socket.socket_ref().set_ext_ack(true)?;
        socket.socket_ref().set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0, unanswered: false, buffer: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    /// Lists a table. `read` gets every message and says what to keep of it.
    pub(super) async fn dump<T>(
        &mut self,
        request: RouteNetlinkMessage,
        read: impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, ExchangeError> {
        self.exchange(request, NLM_F_REQUEST | NLM_F_DUMP, read).await
    }

    /// Asks for or changes one thing; `flags` besides NLM_F_REQUEST and NLM_F_ACK.
    pub(super) async fn request<T>(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        read: impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, ExchangeError> {
        self.exchange(request, NLM_F_REQUEST | NLM_F_ACK | flags, read).await
    }

    async fn exchange<T>(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        read: impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, ExchangeError> {
        if self.unanswered {
            // its outcome was somebody else's business, who is gone
            match self.answer(|_| Ok(None::<()>)).await {
                Ok(_) | Err(ExchangeError::Refused { .. } | ExchangeError::Interrupted) => {}
                Err(error @ (ExchangeError::Io(_) | ExchangeError::Undecodable(_))) => return Err(error),
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes).await?;
        self.unanswered = true;
        self.answer(read).await
    }

    /// Reads the answer to the last request to its end, so that the next one finds the socket in step.
    async fn answer<T>(
        &mut self,
        read: impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, ExchangeError> {
        let mut kept = Vec::new();
        let mut failure = None;
        loop {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer).await;
            if let Err(error) = received {
                // an answer was dropped for want of memory: the rest will not come, or with an old sequence number
                self.unanswered = false;
                return Err(error.into());
            }
            match datagram(&self.buffer, self.sequence, &read, &mut kept, &mut failure) {
                Ok(Answer::Continues) => {}
                Ok(Answer::Complete) => {
                    self.unanswered = false;
                    return failure.map_or(Ok(kept), Err);
                }
                Err(error) => {
                    self.unanswered = false;
                    return Err(error);
                }
            }
        }
    }
}

/// Takes the messages of one datagram; the first failure is kept, the closing message ends the answer.
fn datagram<T>(
    mut bytes: &[u8],
    sequence: u32,
    read: &impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    kept: &mut Vec<T>,
    failure: &mut Option<ExchangeError>,
) -> Result<Answer, ExchangeError> {
    while !bytes.is_empty() {
        let message = NetlinkBuffer::new_checked(bytes)?;
        let (kind, flags, payload) = (message.message_type(), message.flags(), message.payload());
        let next = (message.length() as usize).next_multiple_of(4).min(bytes.len());
        bytes = &bytes[next..];
        if message.sequence_number() != sequence {
            continue;
        }
        if flags & NLM_F_DUMP_INTR != 0 {
            failure.get_or_insert(ExchangeError::Interrupted);
        }
        match kind {
            NLMSG_ERROR | NLMSG_DONE => {
                if let Some(refusal) = refusal(kind, flags, payload)? {
                    failure.get_or_insert(refusal);
                }
                return Ok(Answer::Complete);
            }
            _ => match read(&Frame { kind, payload }) {
                Ok(item) => kept.extend(item),
                Err(error) => {
                    failure.get_or_insert(error.into());
                }
            },
        }
    }
    Ok(Answer::Continues)
}

/// What a closing message says: None is success.
fn refusal(kind: u16, flags: u16, payload: &[u8]) -> Result<Option<ExchangeError>, DecodeError> {
    // Linux allows an empty NLMSG_DONE
    let Some(code) = payload.get(..4) else { return Ok(None) };
    let code = parse_i32(code)?;
    if code >= 0 {
        return Ok(None);
    }
    // NLMSG_ERROR repeats the request before the attributes, or only its header where it was capped
    let request = match payload.get(4..8) {
        Some(length) if kind == NLMSG_ERROR && flags & NLM_F_CAPPED == 0 => parse_u32(length)? as usize,
        Some(_) if kind == NLMSG_ERROR => HEADER_BYTES,
        Some(_) | None => 0,
    };
    let mut message = None;
    if flags & NLM_F_ACK_TLVS != 0 {
        let attributes = payload.get((4 + request).next_multiple_of(4)..).unwrap_or_default();
        for attribute in NlasIterator::new(attributes) {
            let attribute = attribute?;
            if attribute.kind() == EXTENDED_ACK_MESSAGE {
                message = Some(parse_string(attribute.value())?);
            }
        }
    }
    Ok(Some(ExchangeError::Refused { errno: -code, message }))
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::{NLM_F_MULTIPART, emit_u16, emit_u32};

    use super::*;

    const SEQUENCE: u32 = 7;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        emit_u32(&mut bytes[0..4], u32::try_from(HEADER_BYTES + payload.len()).unwrap()).unwrap();
        emit_u16(&mut bytes[4..6], kind).unwrap();
        emit_u16(&mut bytes[6..8], flags).unwrap();
        emit_u32(&mut bytes[8..12], sequence).unwrap();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// The outcome of an answer that consists of these messages: the first payload byte of each one kept.
    fn answer(messages: &[Vec<u8>]) -> Result<Vec<u8>, ExchangeError> {
        let first_byte = |frame: &Frame<'_>| match frame.payload.first() {
            Some(0) | None => Err(DecodeError::from("zero")),
            Some(byte) => Ok(Some(*byte)),
        };
        let (mut kept, mut failure) = (Vec::new(), None);
        match datagram(&messages.concat(), SEQUENCE, &first_byte, &mut kept, &mut failure)? {
            Answer::Complete => failure.map_or(Ok(kept), Err),
            Answer::Continues => panic!("the answer has no end"),
        }
    }

    fn done(flags: u16, code: i32) -> Vec<u8> {
        message(NLMSG_DONE, NLM_F_MULTIPART | flags, SEQUENCE, &code.to_ne_bytes())
    }

    #[test]
    fn a_dump_is_complete_with_its_closing_message() {
        let parts = [message(24, NLM_F_MULTIPART, SEQUENCE, &[1]), message(24, NLM_F_MULTIPART, SEQUENCE, &[2])];
        assert_eq!(answer(&[&parts[..], &[done(0, 0)]].concat()).unwrap(), [1, 2]);
    }

    #[test]
    fn an_interruption_counts_on_whichever_message_it_is_flagged() {
        let part = |flags| message(24, NLM_F_MULTIPART | flags, SEQUENCE, &[1]);
        for messages in [[part(NLM_F_DUMP_INTR), done(0, 0)], [part(0), done(NLM_F_DUMP_INTR, 0)]] {
            assert!(matches!(answer(&messages), Err(ExchangeError::Interrupted)));
        }
    }

    #[test]
    fn a_message_that_cannot_be_decoded_fails_the_whole_reading() {
        let messages = [message(24, NLM_F_MULTIPART, SEQUENCE, &[0]), message(24, 0, SEQUENCE, &[1]), done(0, 0)];
        assert!(matches!(answer(&messages), Err(ExchangeError::Undecodable(_))));
    }

    #[test]
    fn the_rest_of_an_older_answer_is_skipped() {
        let old = [message(24, NLM_F_MULTIPART, SEQUENCE - 1, &[9]), message(NLMSG_DONE, 0, SEQUENCE - 1, &[0; 4])];
        let new = [message(24, NLM_F_MULTIPART, SEQUENCE, &[1]), done(0, 0)];
        assert_eq!(answer(&[old, new].concat()).unwrap(), [1]);
    }

    #[test]
    fn a_refusal_carries_the_kernels_sentence_wherever_it_stands() {
        let attribute = [&[11, 0, 1, 0][..], b"no way\0", &[0]].concat();
        let code = (-libc::ENETUNREACH).to_ne_bytes();
        // only the header of the request is repeated, or all of it: here 20 bytes
        let header = message(24, 0, SEQUENCE, &[]);
        let whole = message(24, 0, SEQUENCE, &[1, 2, 3, 4]);
        for refused in [
            message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, SEQUENCE, &[&code, &header[..], &attribute].concat()),
            message(NLMSG_ERROR, NLM_F_ACK_TLVS, SEQUENCE, &[&code, &whole[..], &attribute].concat()),
            message(NLMSG_DONE, NLM_F_ACK_TLVS, SEQUENCE, &[&code[..], &attribute].concat()),
        ] {
            match answer(&[refused]) {
                Err(ExchangeError::Refused { errno, message }) => {
                    assert_eq!((errno, message.as_deref()), (libc::ENETUNREACH, Some("no way")));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_acknowledgement_without_an_error_is_success() {
        let ack = message(NLMSG_ERROR, NLM_F_CAPPED, SEQUENCE, &[0; 20]);
        assert!(answer(&[ack]).unwrap().is_empty());
    }

    #[test]
    fn a_datagram_cut_short_is_an_error() {
        let mut bytes = message(24, 0, SEQUENCE, &[1; 8]);
        bytes.truncate(20);
        assert!(matches!(answer(&[bytes]), Err(ExchangeError::Undecodable(_))));
    }
}
