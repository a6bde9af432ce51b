//! What `mon_host` says: addresses, as `192.0.2.1`, `[2001:db8::1]:6789` or `[v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0]`, or names.

use std::net::{IpAddr, SocketAddr};

/// The first that is no address: a name, or something that is not understood.
pub(crate) fn without_address(mon_host: &str) -> Option<&str> {
    let mut words = mon_host.split([',', ';', ' ', '\t']).filter(|word| !word.is_empty());
    words.find(|word| !is_address(word))
}

fn is_address(word: &str) -> bool {
    // A list of one monitor's addresses is in brackets, and an address of version 6, too.
    let inner = word.strip_prefix('[').filter(|inner| protocol(inner).is_some()).unwrap_or(word);
    let bare = protocol(inner).unwrap_or(inner);
    [bare, bare.strip_suffix(']').unwrap_or(bare)].into_iter().any(|bare| {
        let place = bare.split_once('/').map_or(bare, |(place, _nonce)| place);
        let host = place.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(place);
        place.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok()
    })
}

/// What follows the protocol.
fn protocol(word: &str) -> Option<&str> {
    ["v1:", "v2:", "any:"].into_iter().find_map(|name| word.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_names() {
        for addresses in [
            "",
            "192.0.2.1",
            "192.0.2.1:6789, 192.0.2.2",
            "[v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0] [v2:192.0.2.2:3300,v1:192.0.2.2:6789]",
            "2001:db8::1",
            "[2001:db8::1];[2001:db8::1]:6789",
            "[v2:[2001:db8::1]:3300/0,v1:[2001:db8::1]:6789/0]",
            "v1:192.0.2.1:6789",
        ] {
            assert_eq!(without_address(addresses), None, "{addresses}");
        }
        for (text, word) in [
            ("mon.example", "mon.example"),
            ("192.0.2.1,mon.example:3300", "mon.example:3300"),
            ("[v9:192.0.2.1:3300]", "[v9:192.0.2.1:3300]"),
            ("192.0.2", "192.0.2"),
            ("192.0.2.1:port", "192.0.2.1:port"),
        ] {
            assert_eq!(without_address(text), Some(word));
        }
    }
}
