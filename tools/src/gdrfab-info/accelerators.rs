// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accelerators of this host: for each vendor, whether its memory can be used or why not, its devices, and the links
//! between them. Printing this opens the drivers, which `getinfo` never does.

use gdrfab::error::Error;
use gdrfab::fabric::hmem::{describe, devices, verdict, without_name};
use gdrfab::hmem::{DeviceFacts, Iface};
use serde_json::{Value, json};
use std::fmt::Write;

pub struct Vendor {
    iface: Iface,
    found: Result<&'static [DeviceFacts], Error>,
}

/// Queries every vendor.
pub fn all() -> Vec<Vendor> {
    Iface::ALL.into_iter().filter(|i| *i != Iface::System).map(|iface| Vendor { iface, found: devices(iface) }).collect()
}

/// A line of a table; the left column is as wide as in the other sections.
fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "  {name:<16} {value}");
}

/// The section on accelerators in the usual output.
pub fn text(vendors: &[Vendor], verbose: bool) -> String {
    let mut out = String::new();
    let mut absent = Vec::new();
    for vendor in vendors {
        match &vendor.found {
            Ok(found) => vendor.devices(&mut out, found),
            Err(e) if verbose => line(&mut out, vendor.iface.name(), &format!("no: {}", without_name(vendor.iface, e))),
            Err(_) => absent.push(vendor.iface.name()),
        }
    }
    if !absent.is_empty() {
        line(&mut out, "not usable", &format!("{} (-v tells why)", absent.join(", ")));
    }
    out
}

impl Vendor {
    fn devices(&self, out: &mut String, found: &[DeviceFacts]) {
        for (number, facts) in found.iter().enumerate() {
            line(out, &format!("{}:{number}", self.iface.name()), &describe(facts));
            line(out, "  dma-buf", &verdict(&facts.dmabuf));
            line(out, "  ipc", &verdict(&facts.ipc));
        }
        if found.len() > 1 {
            line(out, &format!("{} links", self.iface.name()), &row("", (0..found.len()).map(|n| n.to_string())));
            for (number, facts) in found.iter().enumerate() {
                line(out, "", &row(&number.to_string(), (0..found.len()).map(|to| link(number, facts, to).to_string())));
            }
            line(out, "", "x: copies without the host; -: through it");
        }
    }

    pub fn json(&self) -> Value {
        let (found, reason) = match &self.found {
            Ok(found) => (*found, None),
            Err(e) => (&[][..], Some(without_name(self.iface, e))),
        };
        json!({
            "name": self.iface.name(),
            "usable": reason.is_none(),
            "reason": reason,
            "devices": found.iter().enumerate().map(|(number, facts)| device_json(number, facts)).collect::<Value>(),
        })
    }
}

/// One row of the matrix of links.
fn row(head: &str, cells: impl Iterator<Item = String>) -> String {
    let mut out = format!("{head:>3}");
    cells.for_each(|cell| {
        let _ = write!(out, "{cell:>4}");
    });
    out
}

fn link(from: usize, facts: &DeviceFacts, to: usize) -> char {
    match (from == to, facts.peers.contains(&(to as u32))) {
        (true, _) => '.',
        (false, true) => 'x',
        (false, false) => '-',
    }
}

fn device_json(number: usize, facts: &DeviceFacts) -> Value {
    let ability = |refused: &Option<Error>| json!({"possible": refused.is_none(), "reason": refused.as_ref().map(Error::to_string)});
    let id: String = facts.id.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "device": number,
        "name": facts.name,
        "id": id,
        "pci": facts.pci,
        "memory": facts.memory,
        "dmabuf": ability(&facts.dmabuf),
        "ipc": ability(&facts.ipc),
        "peers": facts.peers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_shows_the_links_between_devices() {
        let facts = |peers: &[u32]| DeviceFacts { name: "toy".into(), memory: 1 << 30, peers: peers.to_vec(), ..DeviceFacts::default() };
        let list = [facts(&[1]), facts(&[0]), facts(&[])];
        let mut out = String::new();
        Vendor { iface: Iface::Cuda, found: Err(Error::invalid("")) }.devices(&mut out, &list);
        let matrix: Vec<&str> = out.lines().skip(9).map(str::trim).collect();
        assert_eq!(matrix[0], "cuda links             0   1   2");
        assert_eq!(matrix[1..4], ["0   .   x   -", "1   x   .   -", "2   -   -   ."]);
        assert!(out.starts_with("  cuda:0           toy, 1 GiB\n    dma-buf        yes\n"), "{out}");
    }
}
