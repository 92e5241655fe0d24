use std::net::Ipv6Addr;

use url::Url;

use super::*;

fn egress(allow: &[&str], deny: &[&str]) -> Egress {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Egress::new(&EgressOptions {
        allow: owned(allow),
        deny: owned(deny),
    })
    .unwrap()
}

fn allows(egress: &Egress, ip: &str) -> bool {
    egress
        .check_address("some.host", ip.parse().unwrap(), 5984)
        .is_ok()
}

/// The address that a URL's host is, after the one parser that all endpoints go through.
fn literal(host: &str) -> IpAddr {
    match Url::parse(&format!("http://{host}/"))
        .unwrap()
        .host()
        .unwrap()
    {
        url::Host::Ipv4(ip) => ip.into(),
        url::Host::Ipv6(ip) => ip.into(),
        url::Host::Domain(name) => panic!("{name} is not an address"),
    }
}

#[test]
fn by_default_only_public_addresses() {
    let egress = Egress::new(&EgressOptions::default()).unwrap();
    for denied in "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 \
        169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 \
        198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 \
        :: ::1 ::7f00:1 ::10.0.0.1 ::ffff:127.0.0.1 ::ffff:10.1.2.3 ::ffff:0:127.0.0.1 \
        64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::10.0.0.1 64:ff9b:1::8.8.8.8 100::1 \
        2001:0:4136:e378:8000:63bf:80ff:fffe 2001:db8::1 2002:7f00:1:: 2002:a00:1::1 \
        2002:c0a8:101::1 2606:4700::5efe:10.0.0.1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 \
        fec0::1 ff02::1"
        .split_whitespace()
    {
        assert!(!allows(&egress, denied), "{denied}");
    }
    for allowed in
        "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 \
        ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1 2606:4700::1111"
            .split_whitespace()
    {
        assert!(allows(&egress, allowed), "{allowed}");
    }
}

#[test]
fn odd_spellings_of_addresses() {
    let egress = Egress::new(&EgressOptions::default()).unwrap();
    for host in "2130706433 017700000001 0x7f000001 0x7f.1 127.1 127.0.1 0177.0.0.1 127.0.0.1. \
        %31%32%37.0.0.1 １２７.0.0.1 127。0。0。1 0 0xa9fea9fe 2852039166 [::ffff:7f00:1] \
        [::ffff:169.254.169.254] [0:0:0:0:0:0:0:1]"
        .split_whitespace()
    {
        let ip = literal(host);
        assert!(
            egress.check_address(host, ip, 80).is_err(),
            "{host} is {ip}"
        );
    }
}

#[test]
fn rules() {
    let host = |egress: &Egress, name: &str, port| egress.check_name(name, port).is_ok();
    let one = egress(
        &["db.internal", "10.1.0.0/16", "[fd00:1::]/32"],
        &["special", "*.evil.com", "evil.com"],
    );
    assert!(!host(&one, "evil.com", 80));
    assert!(!host(&one, "EVIL.com.", 80));
    assert!(!host(&one, "a.b.evil.com", 80));
    assert!(host(&one, "notevil.com", 80));
    assert!(allows(&one, "10.1.255.1"));
    assert!(!allows(&one, "10.2.0.1"));
    assert!(allows(&one, "fd00:1::5"));
    assert!(!allows(&one, "fd00:2::5"));
    assert!(
        allows(&one, "64:ff9b::10.1.0.1"),
        "what it wraps is allowed"
    );
    assert!(
        one.check_address("db.internal", "127.0.0.1".parse().unwrap(), 1)
            .is_ok()
    );

    let only = egress(&["couch.example:6984", "9.9.9.9"], &["*"]);
    assert!(host(&only, "couch.example", 6984));
    assert!(!host(&only, "couch.example", 22));
    assert!(!host(&only, "other.example", 6984));
    assert!(allows(&only, "9.9.9.9"));
    assert!(!allows(&only, "9.9.9.8"));

    let own = egress(
        &[],
        &["127.0.0.1:5985", "[::1]:5985", "[::]/0:22", "0.0.0.0/0:22"],
    );
    let at = |ip: &str, port| own.check_address("h", ip.parse().unwrap(), port).is_ok();
    assert!(!at("127.0.0.1", 5985) && !at("::1", 5985) && !at("::ffff:127.0.0.1", 5985));
    assert!(at("127.0.0.1", 5984) && at("::1", 5984));
    assert!(!at("8.8.8.8", 22) && !at("2606:4700::1111", 22));
}

#[test]
fn one_denied_address_denies_all() {
    let egress = Egress::new(&EgressOptions::default()).unwrap();
    let public: SocketAddr = "8.8.8.8:80".parse().unwrap();
    let private = SocketAddr::from((Ipv6Addr::LOCALHOST, 80));
    assert!(egress.check_addresses("h", &[public]).is_ok());
    let error = egress.check_addresses("h", &[public, private]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "egress to h is not allowed by the rule `special`; an operator lets it through with `network.egress.allow`"
    );
}

#[test]
fn bad_rules_are_refused() {
    for bad in [
        "",
        "10.0.0.0/33",
        "::/129",
        "a b",
        "*foo",
        "h:port",
        "10.0.0.0/x",
        "*.",
        "h/8",
    ] {
        let options = EgressOptions {
            allow: vec![bad.to_owned()],
            deny: Vec::new(),
        };
        assert!(Egress::new(&options).is_err(), "{bad}");
    }
}
