//! Classes of addresses, and the IPv4 addresses embedded in IPv6 ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The classes of addresses that are not public.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Loopback,
    Private,
    Cgnat,
    LinkLocal,
    /// Of clouds, outside of their link-local ranges.
    Metadata,
    Multicast,
    Unspecified,
    Reserved,
}

impl Class {
    pub(super) const ALL: [(&'static str, Self); 8] = [
        ("loopback", Self::Loopback),
        ("private", Self::Private),
        ("cgnat", Self::Cgnat),
        ("link_local", Self::LinkLocal),
        ("metadata", Self::Metadata),
        ("multicast", Self::Multicast),
        ("unspecified", Self::Unspecified),
        ("reserved", Self::Reserved),
    ];

    /// The class of an address, `None` for public ones.
    pub(super) fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(ip) => of_v4(ip),
            IpAddr::V6(ip) => of_v6(ip),
        }
    }

    pub(super) fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, class)| *class == self);
        named.map_or("special", |(name, _)| name)
    }

    /// Whether servers of an organization are usually there.
    pub(super) fn is_private(self) -> bool {
        matches!(self, Self::Loopback | Self::Private | Self::Cgnat)
    }
}

fn of_v4(ip: Ipv4Addr) -> Option<Class> {
    match ip.octets() {
        [0, ..] => Some(Class::Unspecified),
        [127, ..] => Some(Class::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(Class::Private),
        // Alibaba Cloud and Azure.
        [100, 100, 100, 200] | [168, 63, 129, 16] => Some(Class::Metadata),
        [100, 64..=127, ..] => Some(Class::Cgnat),
        [169, 254, ..] => Some(Class::LinkLocal),
        [224..=239, ..] => Some(Class::Multicast),
        [240..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Some(Class::Reserved),
        _ => None,
    }
}

fn of_v6(ip: Ipv6Addr) -> Option<Class> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Class::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Class::Loopback),
        // AWS and Google Cloud.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => {
            Some(Class::Metadata)
        }
        // Unique and site local; the local NAT64 prefix leads to wherever its operator configured.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Some(Class::Private),
        [0xfe80..=0xfebf, ..] => Some(Class::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Class::Multicast),
        // Unassigned low addresses, segment routing, discard and documentation prefixes.
        [0 | 0x5f00, ..] | [0x100, 0, 0, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => {
            Some(Class::Reserved)
        }
        _ => None,
    }
}

/// `::ffff:a.b.c.d` is `a.b.c.d`: the kernel connects to the latter.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The IPv4 address that a gateway would translate this one to.
pub(super) fn wrapped(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    // They look like IPv4-compatible addresses.
    if ip.is_loopback() || ip.is_unspecified() {
        return None;
    }
    let join = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match ip.segments() {
        // IPv4-compatible; NAT64 in its well-known and its local prefix; ISATAP; 6to4.
        [0, 0, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low]
        | [0x2002, high, low, ..] => Some(join(high, low)),
        // Teredo hides the client's address inverted.
        [0x2001, 0, .., high, low] => Some(join(!high, !low)),
        _ => None,
    }
}
