// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host's own key pair and the public keys of the hosts that it trusts, read from a file in the manner of ssh's `known_hosts`.

use super::noise::{public_of, shared_secret};
use super::seal::KEY;
use crate::error::{Error, Result, errno};
use crate::prov::tcp::wire::address;
use crate::prov::tcp::wire::address::Host;
use crate::prov::tcp::wire::hello::Id;
use crate::sys::process;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Most bytes of a file: enough for more than ten thousand peers.
pub const FILE_MAX: usize = 1 << 20;

const PRIVATE: &str = "private";
const PEER: &str = "peer";

/// The id of a public key: the first half of its SHA-256. Only somebody who has seen the key can know the id.
fn id_of(public: &[u8; KEY]) -> Id {
    let digest: [u8; 32] = Sha256::digest(public).into();
    std::array::from_fn(|i| digest[i])
}

/// A host that a line of the file names.
#[derive(Clone, PartialEq, Eq)]
enum HostPattern {
    Any,
    Ip(IpAddr),
    Host(String),
}

/// A `peer` line of the file.
#[derive(Clone)]
struct TrustedPeer {
    key: [u8; KEY],
    id: Id,
    names: Arc<[HostPattern]>,
    /// Number of the line in the file, from 1.
    line: usize,
}

struct OwnKey {
    private: Zeroizing<[u8; KEY]>,
    public: [u8; KEY],
    id: Id,
}

/// A host's own key pair and its trusted peers.
#[derive(Clone)]
pub struct KnownHosts {
    own: Arc<OwnKey>,
    /// Sorted by id; each id occurs once.
    peers: Arc<[TrustedPeer]>,
}

impl KnownHosts {
    /// True if a file holds keys of hosts: one of its lines begins with `private` or `peer`. Any other file holds a shared key.
    pub fn has(file: &[u8]) -> bool {
        let mut words = file.split(|b| *b == b'\n').filter_map(|line| line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()));
        words.any(|word| [PRIVATE, PEER].map(str::as_bytes).contains(&word))
    }

    /// Parses a file. No error repeats the text of a line, which may be the private key.
    pub fn parse(file: &[u8]) -> Result<KnownHosts> {
        let text = std::str::from_utf8(file).map_err(|_| Error::invalid("is not UTF-8 text"))?;
        let (mut private, mut peers) = (None, Vec::new());
        for (line, words) in text.lines().enumerate() {
            let line = line + 1;
            let wrong = |why: &str| Error::invalid(format!("line {line}: {why}"));
            let key = |text: &str| unhex(text).ok_or_else(|| wrong("a key must have 64 hexadecimal digits"));
            let mut words = words.split_whitespace();
            match (words.next(), words.next(), words.next(), words.next()) {
                (None, ..) => {}
                (Some(word), ..) if word.starts_with('#') => {}
                (Some(PRIVATE), Some(own), None, _) => {
                    if private.replace(Zeroizing::new(key(own)?)).is_some() {
                        return Err(wrong("a second private key; only one is permitted"));
                    }
                }
                (Some(PEER), Some(hosts), Some(theirs), None) => {
                    let names: Result<Vec<HostPattern>> = hosts.split(',').map(name).collect();
                    let (key, names) = (key(theirs)?, names.map_err(|e| e.context(format_args!("line {line}")))?);
                    peers.push(TrustedPeer { key, id: id_of(&key), names: names.into(), line });
                }
                _ => return Err(wrong("neither \"private KEY\" nor \"peer HOST[,HOST...] KEY\"")),
            }
        }
        let private = private.ok_or_else(|| Error::invalid("has no line \"private KEY\""))?;
        if peers.is_empty() {
            return Err(Error::invalid("has no line \"peer HOST[,HOST...] KEY\", so no peer could connect"));
        }
        if let Some(weak) = peers.iter().find(|peer| shared_secret(&private, &peer.key).is_none()) {
            let words = format!("line {}: an unsafe public key (of low order); generate another key pair on that host", weak.line);
            return Err(Error::new(errno::EKEYREJECTED, words));
        }
        peers.sort_unstable_by_key(|peer| (peer.id, peer.line));
        if let Some(same) = peers.windows(2).find(|same| same[0].id == same[1].id) {
            return Err(Error::invalid(format!("line {}: the same key as in line {}", same[1].line, same[0].line)));
        }
        let public = public_of(&private);
        Ok(KnownHosts { own: Arc::new(OwnKey { private, public, id: id_of(&public) }), peers: peers.into() })
    }

    /// The id of this host's own key.
    pub fn id(&self) -> Id {
        self.own.id
    }

    /// This host's public key, as a peer's file states it.
    pub fn public(&self) -> String {
        hex(&self.own.public)
    }

    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    fn peer(&self, id: &Id) -> Option<&TrustedPeer> {
        self.peers.binary_search_by_key(id, |peer| peer.id).ok().and_then(|at| self.peers.get(at))
    }

    /// This host's private key, and the public key of the peer with this id.
    pub fn pair(&self, peer: &Id) -> Option<(&[u8; KEY], &[u8; KEY])> {
        self.peer(peer).map(|peer| (&*self.own.private, &peer.key))
    }

    /// A copy with only the peer with this id, at any address. Further connections to this peer use the copy.
    pub fn for_peer(&self, peer: &Id) -> Option<KnownHosts> {
        self.peer(peer).map(|peer| self.of(peer))
    }

    /// A copy with only this peer, at any address.
    fn of(&self, peer: &TrustedPeer) -> KnownHosts {
        let one = TrustedPeer { names: Arc::new([HostPattern::Any]), ..peer.clone() };
        KnownHosts { own: self.own.clone(), peers: Arc::new([one]) }
    }

    /// A copy with only one peer: the one whose line names the address or host that is dialed, else the one whose line
    /// is for any host (`*`). Fails if no line fits, or several.
    pub fn for_address(&self, to: &Host, at: SocketAddr) -> Result<KnownHosts> {
        let names_it = |name: &HostPattern| match (name, to) {
            (HostPattern::Ip(ip), _) => *ip == at.ip().to_canonical(),
            (HostPattern::Host(name), Host::Name(to, _)) => name.eq_ignore_ascii_case(to),
            _ => false,
        };
        let two = |fits: &dyn Fn(&HostPattern) -> bool| {
            let mut found = self.peers.iter().filter(|peer| peer.names.iter().any(fits));
            (found.next(), found.next())
        };
        let mut found = two(&names_it);
        if found.0.is_none() {
            found = two(&|name| *name == HostPattern::Any);
        }
        let ip = at.ip().to_canonical();
        let refuse = |why: String| Error::new(errno::EACCES, why);
        match found {
            (Some(peer), None) => Ok(self.of(peer)),
            (Some(one), Some(other)) => {
                let (first, second) = (one.line.min(other.line), one.line.max(other.line));
                Err(refuse(format!("lines {first} and {second} have different keys for {ip}")))
            }
            (None, _) => Err(refuse(format!("no line has a key for {ip} or for any host (*)"))),
        }
    }
}

/// Parses one HOST of a `peer` line.
fn name(text: &str) -> Result<HostPattern> {
    Ok(match text {
        "*" => HostPattern::Any,
        _ => match address::host(text, 0)? {
            Host::Ip(at) => HostPattern::Ip(at.ip().to_canonical()),
            Host::Name(name, _) => HostPattern::Host(name),
        },
    })
}

fn unhex(text: &str) -> Option<[u8; KEY]> {
    let digits: &[u8; 2 * KEY] = text.as_bytes().try_into().ok()?;
    let mut key = [0; KEY];
    for (byte, two) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = two.map(|digit| char::from(digit).to_digit(16));
        *byte = (high? << 4 | low?) as u8;
    }
    Some(key)
}

fn hex(key: &[u8; KEY]) -> String {
    key.iter().fold(String::with_capacity(2 * KEY), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Creates a file with a new private key, readable by its owner alone; returns the public key. An existing file is not changed.
pub fn make(path: &str) -> Result<String> {
    let io = |e: std::io::Error| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("{path}: {e}"));
    let mut private = Zeroizing::new([0; KEY]);
    process::random(&mut *private)?;
    let public = hex(&public_of(&private));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
    let text = Zeroizing::new(format!("{PRIVATE} {}\n# public: {public}\n", *Zeroizing::new(hex(&private))));
    file.write_all(text.as_bytes()).map_err(io)?;
    Ok(public)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::tcp::wire::hello::ID_LEN;

    /// The public key of a private key whose bytes all are `byte`.
    fn public(byte: u8) -> String {
        hex(&public_of(&[byte; KEY]))
    }

    fn private(byte: u8) -> String {
        hex(&[byte; KEY])
    }

    fn parse(text: &str) -> Result<KnownHosts> {
        KnownHosts::parse(text.as_bytes())
    }

    #[test]
    fn a_file_has_a_private_key_and_peers() {
        let text = format!(
            "# of this host\n\n  private {}\r\npeer\tnode7,192.0.2.7,::1 {}\npeer * {}",
            private(1),
            public(7).to_uppercase(),
            public(8)
        );
        let known = parse(&text).unwrap();
        assert_eq!((known.peers(), known.public(), known.id()), (2, public(1), id_of(&public_of(&[1; KEY]))));
        let id = |byte: u8| id_of(&public_of(&[byte; KEY]));
        assert_eq!(known.pair(&id(7)), Some((&[1; KEY], &public_of(&[7; KEY]))));
        assert!(known.pair(&id(1)).is_none() && known.pair(&[0; ID_LEN]).is_none());
        let for_peer = known.for_peer(&id(7)).unwrap();
        assert!(for_peer.pair(&id(7)).is_some() && for_peer.pair(&id(8)).is_none() && for_peer.peers() == 1);
        let anywhere = "198.51.100.1:1".parse().unwrap();
        assert!(for_peer.for_address(&Host::Ip(anywhere), anywhere).unwrap().pair(&id(7)).is_some());
    }

    #[test]
    fn a_dialer_takes_the_key_of_where_it_calls() {
        let text = format!(
            "private {}\npeer node7,192.0.2.7 {}\npeer [2001:db8::8] {}\npeer * {}\npeer two,* {}\npeer two {}",
            private(1),
            public(7),
            public(8),
            public(9),
            public(10),
            public(11)
        );
        let one_any = parse(text.split("\npeer two").next().unwrap()).unwrap();
        let (known, none) = (parse(&text).unwrap(), parse(text.split("\npeer *").next().unwrap()).unwrap());
        let whose = |known: &KnownHosts, to: &str, at: &str| {
            let at: SocketAddr = at.parse().unwrap();
            let to = if to.is_empty() { Host::Ip(at) } else { Host::Name(to.into(), 1) };
            known.for_address(&to, at).map(|one| hex(&one.peers[0].key)).map_err(|e| (e.errno, e.words.to_string()))
        };
        for known in [&known, &one_any, &none] {
            for (to, at, byte) in [
                ("", "192.0.2.7:1", 7),
                ("", "[::ffff:192.0.2.7]:1", 7),
                ("elsewhere", "192.0.2.7:1", 7),
                ("NODE7", "192.0.2.1:1", 7),
                ("", "[2001:db8::8]:1", 8),
            ] {
                assert_eq!(whose(known, to, at), Ok(public(byte)), "{to} {at}");
            }
        }
        assert_eq!(whose(&one_any, "", "192.0.2.1:1"), Ok(public(9)));
        let (errno, words) = whose(&none, "node70", "192.0.2.1:1").unwrap_err();
        assert!(errno == errno::EACCES && words.contains("no line has a key for 192.0.2.1"), "{words}");
        for (to, lines) in [("", "lines 4 and 5"), ("two", "lines 5 and 6")] {
            let (errno, words) = whose(&known, to, "192.0.2.1:1").unwrap_err();
            assert!(errno == errno::EACCES && words.contains(lines), "{words}");
        }
    }

    #[test]
    fn an_error_names_the_line_and_does_not_repeat_it() {
        let (own, peer) = (private(0xab), format!("peer * {}", public(2)));
        let zeros = "0".repeat(64);
        for (text, errno, words) in [
            (format!("private {own}"), errno::EINVAL, "no line \"peer"),
            (peer.clone(), errno::EINVAL, "no line \"private"),
            (format!("private {own}\n{peer}\nprivate {own}"), errno::EINVAL, "line 3: a second private"),
            (format!("private {own}\n\n{peer}\n{}", peer.replace('*', "b")), errno::EINVAL, "line 4: the same key as in line 3"),
            (format!("private {}\n{peer}", &own[1..]), errno::EINVAL, "line 1: a key must have 64"),
            (format!("private {own}0\n{peer}"), errno::EINVAL, "line 1: a key must have 64"),
            (format!("private {}g\n{peer}", &own[1..]), errno::EINVAL, "line 1: a key must have 64"),
            (format!("private +{}\n{peer}", &own[1..]), errno::EINVAL, "line 1: a key must have 64"),
            (format!("private {own}\n{peer}0"), errno::EINVAL, "line 2: a key must have 64"),
            (format!("private {own} {own}\n{peer}"), errno::EINVAL, "line 1: neither"),
            (format!("private {own}\n{peer} # there"), errno::EINVAL, "line 2: neither"),
            (format!("private {own}\npeer {}", public(2)), errno::EINVAL, "line 2: neither"),
            (format!("private {own}\n{peer}\n{own}"), errno::EINVAL, "line 3: neither"),
            (format!("private\n{peer}"), errno::EINVAL, "line 1: neither"),
            (format!("private {own}\n{}", peer.replace('*', "a,,b")), errno::EINVAL, "line 2: addr"),
            (format!("private {own}\n{}", peer.replace('*', "192.0.2")), errno::EINVAL, "line 2: addr"),
            (format!("private {own}\n{peer}\npeer b {zeros}"), errno::EKEYREJECTED, "line 3: an unsafe public key (of low order)"),
            (format!("private {own}\npeer b 01{}", &zeros[2..]), errno::EKEYREJECTED, "line 2: an unsafe public key (of low order)"),
        ] {
            let e = parse(&text).err().expect(&text);
            assert!(e.errno == errno && e.words.contains(words) && !e.words.contains(&own[1..]), "{text}: {e}");
            assert!(KnownHosts::has(text.as_bytes()), "{text}");
        }
        assert!(KnownHosts::parse(b"private \xff").is_err());
    }

    #[test]
    fn a_shared_key_is_none_of_these() {
        for key in [&b"0123456789abcdef"[..], b"privateer of the sea", b"my peer is my friend", b"", b"#\n", b"a\nprivately spoken"] {
            assert!(!KnownHosts::has(key), "{key:?}");
        }
        for file in [&b"private"[..], b"peer x", b" \tprivate x", b"# mine\nprivate x", b"\xff\n\npeer\t"] {
            assert!(KnownHosts::has(file), "{file:?}");
        }
    }

    #[test]
    fn a_new_key_is_for_its_owner_alone_and_takes_no_ones_place() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("gdrfab-new-key-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let _ = std::fs::remove_file(&path);
        let public = make(name).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(make(name).unwrap_err().errno, errno::EEXIST);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(parse(&format!("{text}peer * {public}\n")).unwrap().public(), public);
        std::fs::remove_file(&path).unwrap();
    }
}
