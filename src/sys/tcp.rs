// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP sockets: creating, connecting and tuning them, and the addresses of this host's interfaces. These sockets never
//! block.

use super::{fd, fork};
use crate::error::{Code, Error, Result, errno};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

fn fresh(of: SocketAddr) -> Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(ipproto::TCP))
        .and_then(fd::own)
        .map_err(|e| Error::os(format_args!("creating a TCP socket for {of}"), e))?;
    fork::keep_from_children(fd.as_fd());
    Ok(fd)
}

/// A socket bound to `at`; with port 0 the kernel chooses a port. A v6 address leaves the v4 port of that number free.
pub fn bind(at: SocketAddr) -> Result<OwnedFd> {
    let fd = fresh(at)?;
    let bound = || -> rustix::io::Result<()> {
        // Lets a restarted program use its port again at once.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        rustix::net::bind(&fd, &at)
    };
    bound().map_err(|e| match e {
        Errno::ADDRNOTAVAIL => Error::new(errno::EADDRNOTAVAIL, format!("listening on {at}: not an address of this host")),
        e => Error::os(format_args!("listening on {at}"), e),
    })?;
    Ok(fd)
}

/// Makes a bound socket accept connections; the kernel queues up to `backlog` of them.
pub fn start(fd: BorrowedFd<'_>, backlog: i32) -> Result<()> {
    rustix::net::listen(fd, backlog).map_err(|e| Error::os("listening", e))
}

/// A listener on `at`.
pub fn listen(at: SocketAddr, backlog: i32) -> Result<OwnedFd> {
    let fd = bind(at)?;
    start(fd.as_fd(), backlog).map_err(|e| e.context(at))?;
    Ok(fd)
}

/// Begins to connect; `connected` reports the result. `from` is this side's address; without one, the routes choose the
/// address. A port in `from` is used if it is free, else the kernel chooses one.
pub fn connect(to: SocketAddr, from: Option<SocketAddr>) -> Result<OwnedFd> {
    match begin(to, from) {
        Err(e) if matches!(e.errno, errno::EADDRINUSE | errno::EADDRNOTAVAIL) => begin(to, from.map(|from| SocketAddr::new(from.ip(), 0))),
        begun => begun,
    }
}

fn begin(to: SocketAddr, from: Option<SocketAddr>) -> Result<OwnedFd> {
    let fd = fresh(to)?;
    if let Some(from) = from {
        if from.port() != 0 {
            // With this option, neither a former user of the port nor a later listener on the port prevents the bind.
            sockopt::set_socket_reuseaddr(&fd, true).map_err(|e| Error::os(format_args!("connecting from {from}"), e))?;
        }
        // The port is chosen when the peer is known, which makes many more connections possible. Older kernels choose
        // the port now.
        let _ = set_int(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        rustix::net::bind(&fd, &from).map_err(|e| Error::os(format_args!("connecting from {from}"), e))?;
    }
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::AGAIN) => Ok(fd),
        Err(e) => Err(no_connection(e).context(to)),
    }
}

/// `Some` once the connection is established, `None` before; an error if it failed.
pub fn connected(fd: BorrowedFd<'_>) -> Result<Option<()>> {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(e) => return Err(Error::os("connecting", e)),
    }
    match sockopt::socket_error(fd) {
        Ok(Ok(())) => Ok(Some(())),
        Ok(Err(e)) | Err(e) => Err(no_connection(e)),
    }
}

/// Errors of connecting, in words for the user.
fn no_connection(e: Errno) -> Error {
    let (errno, words) = match e {
        Errno::CONNREFUSED => (errno::ECONNREFUSED, "nothing listens at this address"),
        Errno::CONNRESET => (errno::ECONNREFUSED, "the listener closed before it answered"),
        Errno::TIMEDOUT => (errno::ETIMEDOUT, "no answer: the host is down, or a firewall drops packets for this port"),
        Errno::HOSTUNREACH => (errno::EHOSTUNREACH, "the host cannot be reached, or a firewall rejects the connection"),
        Errno::NETUNREACH => (errno::ENETUNREACH, "no route leads to this address"),
        Errno::INVAL => (errno::EINVAL, "the peer cannot be reached from the given local address"),
        e => return Error::os("connecting", e),
    };
    Error::fixed(errno, words)
}

/// The next connection, or none yet.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, SocketAddr)>> {
    let accepted = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    match accepted.and_then(|(made, from)| Ok((fd::own(made)?, from))) {
        Ok((fd, from)) => match from.and_then(|a| SocketAddr::try_from(a).ok()) {
            Some(from) => {
                fork::keep_from_children(fd.as_fd());
                Ok(Some((fd, from)))
            }
            None => Err(Error::fixed(errno::EPROTO, "accepting a connection: it does not come from an IP address")),
        },
        // Errors of a connection that is already gone; accept(2) asks to treat them like EAGAIN.
        Err(
            Errno::AGAIN
            | Errno::INTR
            | Errno::CONNABORTED
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH,
        ) => Ok(None),
        Err(e) => Err(Error::os("accepting a connection", e)),
    }
}

/// This side's address.
pub fn local(fd: BorrowedFd<'_>) -> Result<SocketAddr> {
    let at = rustix::net::getsockname(fd).map_err(|e| Error::os("asking for a socket's address", e))?;
    SocketAddr::try_from(at).map_err(|e| Error::os("asking for a socket's address", e))
}

/// The other side's address, of a socket that was connected.
pub fn peer(fd: BorrowedFd<'_>) -> Result<SocketAddr> {
    let gone = || Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection");
    let at = rustix::net::getpeername(fd)
        .map_err(|e| if e == Errno::NOTCONN { gone() } else { Error::os("asking for the peer's address", e) })?;
    at.and_then(|a| SocketAddr::try_from(a).ok()).ok_or_else(gone)
}

/// Makes small packets leave at once.
pub fn set_no_delay(fd: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_tcp_nodelay(fd, true).map_err(|e| Error::os("setting TCP_NODELAY", e))
}

/// For a dead-peer timeout: seconds until an idle peer is probed, seconds between probes, and the number of unanswered
/// probes.
fn probes(timeout_ms: u32) -> (u64, u64, u32) {
    let whole = u64::from(timeout_ms.div_ceil(1000)).clamp(1, 30_000);
    let idle = (whole / 2).max(1);
    let rest = (whole - idle).max(1);
    let every = (rest / 3).max(1);
    (idle, every, (rest / every).clamp(1, 127) as u32)
}

/// A peer whose kernel answers nothing for this long counts as dead. On an idle connection the kernel finds a dead
/// peer; while data is in flight, the users of `Health` (`health.rs`) find it. TCP_USER_TIMEOUT is not used, because it
/// also ends a connection with a closed window whose probes the peer's kernel answers.
pub fn set_keep_alive(fd: BorrowedFd<'_>, timeout_ms: u32) -> Result<()> {
    /// TCP_RTO_MAX_MS, of Linux 6.15.
    const RTO_MAX_MS: i32 = 44;
    let (idle, every, count) = probes(timeout_ms);
    let set = || -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, Duration::from_secs(idle))?;
        sockopt::set_tcp_keepintvl(fd, Duration::from_secs(every))?;
        sockopt::set_tcp_keepcnt(fd, count)
    };
    set().map_err(|e| Error::os("setting how long a peer may stay silent", e))?;
    // A closed window is probed often enough for two missed answers to be noticed in time. Older kernels double the
    // pause up to two minutes.
    set_int(&fd, libc::IPPROTO_TCP, RTO_MAX_MS, (timeout_ms / 4).clamp(1000, 120_000) as i32);
    Ok(())
}

/// Sets the sizes of the kernel's buffers, which the kernel otherwise chooses itself.
pub fn set_buffers(fd: BorrowedFd<'_>, bytes: usize) -> Result<()> {
    sockopt::set_socket_send_buffer_size(fd, bytes)
        .and_then(|()| sockopt::set_socket_recv_buffer_size(fd, bytes))
        .map_err(|e| Error::os("setting the sizes of a socket's buffers", e))
}

/// Chooses the congestion control algorithm. The host decides which ones a user may choose.
pub fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> Result<()> {
    sockopt::set_tcp_congestion(fd, name).map_err(|e| Error::os(format_args!("choosing congestion control {name:?}"), e))
}

/// Bounds the bytes that the kernel accepts before it can send them (TCP_NOTSENT_LOWAT), so that other streams can
/// carry the rest.
pub fn set_unsent(fd: BorrowedFd<'_>, bytes: i32) -> Result<()> {
    match set_int(&fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes) {
        true => Ok(()),
        false => Err(Error::fixed(errno::EIO, "setting TCP_NOTSENT_LOWAT")),
    }
}

/// For each of `fds`, true if it is hung up, even if it still has unread data.
pub fn hung_up(fds: &[BorrowedFd<'_>]) -> Vec<bool> {
    let mut all: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::RDHUP)).collect();
    match rustix::event::poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(n) if n > 0 => all.iter().map(|p| !p.revents().is_empty()).collect(),
        _ => vec![false; fds.len()],
    }
}

fn set_int(fd: &impl AsFd, level: i32, name: i32, value: i32) -> bool {
    // SAFETY: value is live and as long as the length says.
    unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as libc::socklen_t) == 0 }
}

/// Sends as many bytes as the socket accepts; 0 if none now.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    match rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) => Ok(n),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(e) => Err(gone(e)),
    }
}

/// Receives available bytes, at most `buf.len()`; `None`: none now.
pub fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<Option<usize>> {
    match rustix::net::recv(fd, buf, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection")),
        Ok((_, n)) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(gone(e)),
    }
}

fn gone(e: Errno) -> Error {
    Error::coded(e.raw_os_error(), Code::PeerGone, format!("the connection to the peer is lost: {}", errno::words(e.raw_os_error())))
}

/// For each of `fds`, true if it has data or an error to read. One system call asks for all.
pub fn readable(fds: &[BorrowedFd<'_>]) -> Vec<bool> {
    let mut all: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match rustix::event::poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(Errno::INTR) => vec![false; fds.len()],
        Ok(_) => all.iter().map(|p| !p.revents().is_empty()).collect(),
        // Reading a socket without data does no harm.
        Err(_) => vec![true; fds.len()],
    }
}

/// An address of an interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub ip: IpAddr,
    pub up: bool,
}

/// The IP address in a kernel's socket address.
///
/// # Safety
/// `at` is NULL or points to a socket address as long as its family says.
unsafe fn ip_of(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller promises a live address of its family's length; the family tells the type, and unaligned reads
    // are used.
    unsafe {
        match i32::from((&raw const (*at).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let raw = at.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr))))
            }
            libc::AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(at.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr))),
            _ => None,
        }
    }
}

/// All IP addresses of this host's interfaces, in the kernel's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is live; the list that getifaddrs stores there is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EIO);
        return Err(Error::new(e, format!("listing this host's interfaces (getifaddrs): {}", errno::words(e))));
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: getifaddrs made this list. Its names are C strings, and its addresses are as long as their family
        // says.
        let entry = unsafe { &*next };
        // SAFETY: getifaddrs made this list, and its addresses are as long as their family says.
        if let Some(ip) = unsafe { ip_of(entry.ifa_addr) } {
            // SAFETY: getifaddrs made this list, and its names are C strings.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            found.push(Interface { name, ip, up: entry.ifa_flags & libc::IFF_UP as u32 != 0 });
        }
        next = entry.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs, and nothing of it is referred to any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// True if the address is valid only together with an interface's number.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80)
}

/// The first address of the given family that the interface `name` has.
pub fn interface_address(name: &str, v6: bool) -> Result<IpAddr> {
    let all = interfaces()?;
    let mut its = all.iter().filter(|i| i.name == name).peekable();
    if its.peek().is_none() {
        let mut names: Vec<&str> = Vec::new();
        all.iter().for_each(|i| {
            if !names.contains(&i.name.as_str()) {
                names.push(&i.name)
            }
        });
        return Err(Error::new(errno::ENODEV, format!("no interface {name:?} with an IP address; this host has {}", names.join(", "))));
    }
    its.find(|i| i.ip.is_ipv6() == v6 && !is_link_local(i.ip)).map(|i| i.ip).ok_or_else(|| {
        let family = if v6 { "IPv6" } else { "IPv4" };
        Error::new(errno::EADDRNOTAVAIL, format!("interface {name:?} has no {family} address that peers can use"))
    })
}

/// The TCP port that /etc/services gives `name`. The library reads the file itself, because the C library's resolver
/// would load every module that it is configured with.
pub fn service_port(name: &str) -> Option<u16> {
    listed(&std::fs::read_to_string("/etc/services").ok()?, name)
}

/// A line of services(5) has a name, "port/protocol", and further names.
fn listed(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let first = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        (first == name || words.any(|other| other == name)).then(|| port.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn until<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        for _ in 0..2000 {
            if let Some(got) = ask()? {
                return Ok(got);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nothing in two seconds")
    }

    /// With the caller in its queue.
    #[test]
    fn a_listener_that_closes_refuses() {
        let listener = listen(ANY, 8).unwrap();
        let one = connect(local(listener.as_fd()).unwrap(), None).unwrap();
        drop(listener);
        let refused = until(|| connected(one.as_fd())).unwrap_err();
        assert_eq!((refused.errno, &*refused.words), (errno::ECONNREFUSED, "the listener closed before it answered"));
    }

    /// A free port is used. A port that another socket has is left to it, and another port is used instead.
    #[test]
    fn a_port_to_call_from() {
        let listener = listen(ANY, 8).unwrap();
        let at = local(listener.as_fd()).unwrap();
        let from = local(bind(ANY).unwrap().as_fd()).unwrap();
        let one = connect(at, Some(from)).unwrap();
        until(|| connected(one.as_fd())).unwrap();
        assert_eq!(local(one.as_fd()).unwrap(), from);
        for taken in [from, at] {
            let other = connect(at, Some(taken)).unwrap();
            until(|| connected(other.as_fd())).unwrap();
            assert_eq!(local(other.as_fd()).unwrap().ip(), taken.ip());
            assert_ne!(local(other.as_fd()).unwrap().port(), taken.port());
        }
        // A connection from a port does not keep others from listening on that port.
        listen(from, 8).unwrap();
    }

    #[test]
    fn two_sockets_meet_and_are_tuned() {
        let listener = listen(ANY, 8).unwrap();
        let at = local(listener.as_fd()).unwrap();
        assert_ne!(at.port(), 0);
        let one = connect(at, Some(ANY)).unwrap();
        until(|| connected(one.as_fd())).unwrap();
        let (two, from) = until(|| accept(listener.as_fd())).unwrap();
        assert_eq!((from, at), (local(one.as_fd()).unwrap(), peer(one.as_fd()).unwrap()));
        for fd in [one.as_fd(), two.as_fd()] {
            set_no_delay(fd).unwrap();
            set_keep_alive(fd, 30_000).unwrap();
            set_buffers(fd, 1 << 16).unwrap();
        }
        assert_eq!(sockopt::tcp_user_timeout(&one).unwrap(), 0);
        assert_eq!(send(one.as_fd(), b"abc").unwrap(), 3);
        assert_eq!(readable(&[one.as_fd(), two.as_fd()]), [false, true]);
        let mut buf = [0; 8];
        assert_eq!(until(|| recv(two.as_fd(), &mut buf)).unwrap(), 3);
        assert!(recv(two.as_fd(), &mut buf).unwrap().is_none());
        drop(one);
        assert_eq!(until(|| recv(two.as_fd(), &mut buf)).unwrap_err().code, Code::PeerGone);
    }

    #[test]
    fn nobody_listens_where_nobody_does() {
        let bound = bind(ANY).unwrap();
        let at = local(bound.as_fd()).unwrap();
        let e = connect(at, None).and_then(|fd| until(|| connected(fd.as_fd()))).unwrap_err();
        assert_eq!(e.errno, errno::ECONNREFUSED, "{e}");
        let e = bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(e.errno == errno::EADDRNOTAVAIL && e.words.contains("192.0.2.1"), "{e}");
    }

    #[test]
    fn a_dead_peer_is_noticed_in_about_the_timeout() {
        for ms in [1, 1000, 2000, 5000, 30_000, 60_000, 3_600_000] {
            let (idle, every, count) = probes(ms);
            let whole = idle + every * u64::from(count);
            let want = u64::from(ms.div_ceil(1000));
            assert!(whole <= want + 1 && whole + every >= want, "{ms}: {idle} + {every} * {count}");
        }
    }

    #[test]
    fn the_loopback_interface_has_its_address() {
        let lo = interfaces().unwrap().into_iter().find(|i| i.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!(interface_address(&lo.name, false).unwrap(), lo.ip);
        let e = interface_address("none-such", false).unwrap_err();
        assert!(e.words.contains("none-such") && e.words.contains(&lo.name), "{e}");
    }

    #[test]
    fn services_have_their_ports() {
        let text = "# all\ndomain\t53/udp\ndomain\t53/tcp\t# of names\nhttp 80/tcp www web\n\nlate 99999/tcp\nodd\n";
        for (name, port) in
            [("domain", Some(53)), ("www", Some(80)), ("80/tcp", None), ("of", None), ("late", None), ("odd", None), ("", None)]
        {
            assert_eq!(listed(text, name), port, "{name}");
        }
    }
}
