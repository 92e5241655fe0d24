use std::net::Ipv6Addr;

use url::Url;

use super::*;

fn egress(allow: &[&str], deny: &[&str]) -> Egress {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Egress::new(&EgressOptions {
        allow: owned(allow),
        deny: owned(deny),
        own: Vec::new(),
    })
    .unwrap()
}

fn allows(egress: &Egress, ip: &str) -> bool {
    egress
        .check_address("some.host", ip.parse().unwrap(), 5984, Reach::Public)
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
            egress.check_address(host, ip, 80, Reach::Public).is_err(),
            "{host} is {ip}"
        );
    }
}

#[test]
fn administrators_reach_private_addresses_too() {
    let egress = Egress::new(&EgressOptions::default()).unwrap();
    let reaches = |ip: &str| {
        let checked = egress.check_address("h", ip.parse().unwrap(), 5984, Reach::Private);
        checked.map_err(|error| error.to_string())
    };
    for private in [
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::10.0.0.1",
        "fd00::1",
    ] {
        assert_eq!(reaches(private), Ok(true), "{private}");
    }
    assert_eq!(reaches("8.8.8.8"), Ok(false));
    for (refused, class) in [
        ("0.0.0.0", "unspecified"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("169.254.169.254", "link_local"),
        ("192.0.2.1", "reserved"),
        ("224.0.0.1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("::", "unspecified"),
        ("fd00:ec2::254", "metadata"),
        ("fe80::1", "link_local"),
        ("64:ff9b::a9fe:a9fe", "link_local"),
        ("ff02::1", "multicast"),
    ] {
        let said = format!("its address is `{class}`");
        assert!(reaches(refused).unwrap_err().contains(&said), "{refused}");
    }
    let private = egress.check_address("h", "10.0.0.1".parse().unwrap(), 80, Reach::Public);
    let said = private.unwrap_err().to_string();
    assert!(
        said.contains("only replications of server administrators"),
        "{said}"
    );
    let open = Egress::new(&EgressOptions::open()).unwrap();
    assert!(allows(&open, "169.254.169.254") && allows(&open, "::1"));
}

#[test]
fn deny_wins_over_allow_and_reach() {
    let host = |egress: &Egress, name: &str, port| egress.check_name(name, port).is_ok();
    let one = egress(
        &["db.internal", "10.1.0.0/16", "[fd00:1::]/32", "evil.com"],
        &["*.evil.com", "evil.com", "10.1.2.0/24", "172.16.0.0/12"],
    );
    assert!(!host(&one, "evil.com", 80));
    assert!(!host(&one, "EVIL.com.", 80));
    assert!(!host(&one, "a.b.evil.com", 80));
    assert!(host(&one, "notevil.com", 80));
    assert!(allows(&one, "10.1.255.1"));
    assert!(!allows(&one, "10.1.2.1"));
    assert!(!allows(&one, "10.2.0.1"));
    assert!(allows(&one, "fd00:1::5"));
    assert!(!allows(&one, "fd00:2::5"));
    assert!(
        allows(&one, "64:ff9b::10.1.0.1"),
        "what it wraps is allowed"
    );
    assert!(
        !allows(&one, "64:ff9b::10.1.2.1"),
        "what it wraps is denied"
    );
    let at = |name: &str, ip: &str, reach| {
        let checked = one.check_address(name, ip.parse().unwrap(), 1, reach);
        checked.is_ok()
    };
    assert!(at("db.internal", "127.0.0.1", Reach::Public));
    assert!(!at("db.internal", "10.1.2.1", Reach::Public));
    assert!(!at("h", "172.16.0.1", Reach::Private));
    assert!(at("h", "172.15.0.1", Reach::Private));
}

#[test]
fn own_addresses_need_a_rule_with_a_port() {
    let with = |allow: &[&str], own: &[&str]| {
        let options = EgressOptions {
            allow: allow.iter().map(|text| (*text).to_owned()).collect(),
            own: own.iter().map(|text| text.parse().unwrap()).collect(),
            ..EgressOptions::default()
        };
        let egress = Egress::new(&options).unwrap();
        move |ip: &str, port| {
            let ip = ip.parse().unwrap();
            egress.check_address("h", ip, port, Reach::Private).is_ok()
        }
    };
    let own = with(&["loopback", "*"], &["127.0.0.1:5985", "10.9.9.9:4500"]);
    assert!(!own("127.0.0.1", 5985) && !own("::ffff:127.0.0.1", 5985) && !own("10.9.9.9", 4500));
    assert!(own("127.0.0.1", 5984) && own("127.0.0.2", 5985) && own("10.9.9.9", 5984));
    let anywhere = with(&[], &["0.0.0.0:5985"]);
    assert!(!anywhere("127.0.0.1", 5985) && !anywhere("127.0.0.2", 5985));
    assert!(anywhere("192.168.77.7", 5985), "no address of this host");
    assert!(with(&["127.0.0.1:5985"], &["0.0.0.0:5985"])(
        "127.0.0.1",
        5985
    ));
}

#[test]
fn one_denied_address_denies_all() {
    let egress = Egress::new(&EgressOptions::default()).unwrap();
    let public: SocketAddr = "8.8.8.8:80".parse().unwrap();
    let private = SocketAddr::from((Ipv6Addr::LOCALHOST, 80));
    let check = |found: &[SocketAddr]| egress.check_addresses("h", found, Reach::Public);
    assert!(check(&[public]).is_ok());
    assert!(check(&[public, private]).is_err());
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
        "10.0.0",
        "10.0.0.256",
        "http://h:5984",
    ] {
        let options = EgressOptions {
            allow: vec![bad.to_owned()],
            ..EgressOptions::default()
        };
        assert!(Egress::new(&options).is_err(), "{bad}");
    }
}
