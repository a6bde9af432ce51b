//! What a client says before it asks for data: the option haggling of the fixed newstyle.

use super::clients::Offer;
use device::nbd::{
    ExportInfo, HandshakeOption, OptionError, context_out, decode_option, export_name_out, info_out, option_error,
    option_reply, server_out,
    spec::{context, info, option, option_reply_type as reply},
};

/// Numbers of the metadata contexts that there are.
pub(super) const ALLOCATION: u32 = 1;
pub(super) const BITMAP: u32 = 2;

/// What TLS has to do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protection {
    /// Nothing: it is not offered.
    #[default]
    Absent,
    /// It has to come first (NBD protocol, "TLS versions", FORCEDTLS).
    Required,
    /// It has begun.
    Begun,
}

/// What was agreed on so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    /// No padding behind the reply to NBD_OPT_EXPORT_NAME.
    pub(super) no_zeroes: bool,
    /// Reads are answered by chunks.
    pub(super) structured: bool,
    /// What the client may ask.
    pub(super) contexts: Chosen,
    /// Whether it is said behind TLS.
    pub(super) protection: Protection,
}

impl Agreed {
    /// TLS begins: what was said in the open, by whomever, holds no more. The client's flags came before all options, and are not said
    /// again.
    fn protect(&mut self) {
        *self = Agreed { no_zeroes: self.no_zeroes, protection: Protection::Begun, ..Agreed::default() };
    }
}

/// Metadata contexts that a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Where there is data.
    pub(super) allocation: bool,
    /// What is dirty.
    pub(super) bitmap: bool,
}

impl Chosen {
    pub(super) fn some(self) -> bool {
        self.allocation || self.bitmap
    }
}

/// What there is to choose: names and numbers.
fn contexts(offer: &Offer) -> impl Iterator<Item = (&[u8], u32)> {
    let bitmap = offer.bitmap.as_deref().map(|bitmap| (bitmap.context(), BITMAP));
    std::iter::once((context::BASE_ALLOCATION, ALLOCATION)).chain(bitmap)
}

/// What comes behind an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another option.
    Option,
    /// A handshake of TLS, and then another option.
    Tls,
    /// Requests.
    Requests,
    /// Nothing: the client leaves.
    Leave,
    /// Nothing: the protocol has no other answer to what it said.
    End(String),
}

/// Answers the option that `message` is. `export` is the name of the export; clients may also leave it out, as this is the only
/// one here.
pub(super) fn haggle(message: &[u8], export: &str, offer: &Offer, agreed: &mut Agreed, out: &mut Vec<u8>) -> Next {
    let (number, asked) = decode_option(message);
    if agreed.protection == Protection::Required && ![option::STARTTLS, option::ABORT].contains(&number) {
        let reason = "this server tells and serves nothing without TLS: begin that first";
        if number == option::EXPORT_NAME {
            return Next::End("the client does not begin TLS, which `tls` asks for".to_owned());
        }
        option_error(out, number, &OptionError { kind: reply::ERR_TLS_REQD, reason });
        return Next::Option;
    }
    let named = |name: &[u8]| name.is_empty() || name == export.as_bytes();
    let unknown = || OptionError { kind: reply::ERR_UNKNOWN, reason: "no export has this name" };
    let (size_bytes, flags) = (offer.terms.size_bytes, offer.flags(agreed.structured));
    // What is chosen replaces what was, also where it fails (NBD protocol, under NBD_OPT_SET_META_CONTEXT).
    if number == option::SET_META_CONTEXT {
        agreed.contexts = Chosen::default();
    }
    let asked = match asked {
        Ok(asked) => asked,
        // There is no reply to it but the export.
        Err(error) if number == option::EXPORT_NAME => return Next::End(error.reason.to_owned()),
        Err(error) => {
            option_error(out, number, &error);
            return Next::Option;
        }
    };
    match asked {
        HandshakeOption::ExportName(name) if named(name) && offer.has_large_blocks() => {
            return Next::End(format!(
                "the client does not ask for the block size, which is {}",
                offer.terms.block_bytes
            ));
        }
        HandshakeOption::ExportName(name) if named(name) => {
            export_name_out(out, size_bytes, flags, agreed.no_zeroes);
            return Next::Requests;
        }
        HandshakeOption::ExportName(name) => {
            return Next::End(format!("the client asks for the export `{}`", name.escape_ascii()));
        }
        HandshakeOption::Abort => {
            option_reply(out, number, reply::ACK, &[]);
            return Next::Leave;
        }
        HandshakeOption::List => {
            server_out(out, number, export);
            option_reply(out, number, reply::ACK, &[]);
        }
        HandshakeOption::Info(go) | HandshakeOption::Go(go) if !named(go.name) => option_error(out, number, &unknown()),
        HandshakeOption::Go(go) if offer.has_large_blocks() && !go.wants(info::BLOCK_SIZE) => {
            let reason = "the export's blocks are larger than 512 bytes: ask for the block sizes";
            option_error(out, number, &OptionError { kind: reply::ERR_BLOCK_SIZE_REQD, reason });
        }
        HandshakeOption::Info(go) | HandshakeOption::Go(go) => {
            info_out(out, number, &go, &ExportInfo { size_bytes, flags, block: offer.block(), name: export });
            option_reply(out, number, reply::ACK, &[]);
            if number == option::GO {
                return Next::Requests;
            }
        }
        HandshakeOption::StructuredReply => {
            agreed.structured = true;
            option_reply(out, number, reply::ACK, &[]);
        }
        HandshakeOption::ListMetaContext(_) | HandshakeOption::SetMetaContext(_) if !agreed.structured => {
            option_error(out, number, &OptionError::invalid("metadata contexts need structured replies"));
        }
        HandshakeOption::ListMetaContext(asked) | HandshakeOption::SetMetaContext(asked) if !named(asked.name) => {
            option_error(out, number, &unknown());
        }
        HandshakeOption::ListMetaContext(asked) => {
            for (name, _) in contexts(offer).filter(|(name, _)| asked.list(name)) {
                // The number is for a choice.
                context_out(out, number, 0, name);
            }
            option_reply(out, number, reply::ACK, &[]);
        }
        HandshakeOption::SetMetaContext(asked) => {
            for (name, id) in contexts(offer).filter(|(name, _)| asked.choose(name)) {
                let chosen = &mut agreed.contexts;
                *if id == BITMAP { &mut chosen.bitmap } else { &mut chosen.allocation } = true;
                context_out(out, number, id, name);
            }
            option_reply(out, number, reply::ACK, &[]);
        }
        HandshakeOption::StartTls if agreed.protection == Protection::Required => {
            option_reply(out, number, reply::ACK, &[]);
            agreed.protect();
            return Next::Tls;
        }
        HandshakeOption::StartTls if agreed.protection == Protection::Begun => {
            option_error(out, number, &OptionError::invalid("TLS has begun already"));
        }
        HandshakeOption::StartTls | HandshakeOption::Unknown => {
            let reason = "this server does not have the option";
            option_error(out, number, &OptionError { kind: reply::ERR_UNSUP, reason });
        }
    }
    Next::Option
}
