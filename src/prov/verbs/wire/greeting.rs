// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The greeting: a header before the caller's private data in connection requests and answers. The greeting contains
//! the length of the private data, because InfiniBand pads private data with zeros. A peer that sends no greeting does
//! not use this library.

const MAGIC: [u8; 2] = *b"gf";
const VERSION: u8 = 1;
/// Bytes of the greeting.
pub const BYTES: usize = 8;
/// Most bytes of the caller's data: a connection request over InfiniBand has 56 bytes, less the greeting.
pub const DATA_MAX: usize = 56 - BYTES;

pub struct Greeting<'a> {
    /// The number of the service queue pair.
    pub service: Option<u32>,
    /// The number of rails of this side; 0: it uses no rails.
    pub rails: u8,
    pub data: &'a [u8],
}

impl Greeting<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let service = self.service.unwrap_or(0).to_be_bytes();
        let mut bytes = vec![MAGIC[0], MAGIC[1], VERSION, self.data.len() as u8, service[1], service[2], service[3], self.rails];
        bytes.extend_from_slice(self.data);
        bytes
    }
}

/// Splits private data into the greeting and the caller's data. `None`: the data is not from this version of the
/// library.
pub fn decode(bytes: &[u8]) -> Option<Greeting<'_>> {
    let (head, rest) = bytes.split_at_checked(BYTES)?;
    let [g, f, VERSION, len, a, b, c, rails] = *head else { return None };
    if [g, f] != MAGIC {
        return None;
    }
    let service = u32::from_be_bytes([0, a, b, c]);
    Some(Greeting { service: (service != 0).then_some(service), rails, data: rest.get(..len as usize)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_survives_padding() {
        let mut bytes = Greeting { service: Some(0xabcdef), rails: 2, data: b"hello\0" }.encode();
        bytes.resize(56, 0);
        let back = decode(&bytes).expect("ours");
        assert_eq!((back.service, back.rails, back.data), (Some(0xabcdef), 2, b"hello\0".as_slice()));
        assert!(decode(b"").is_none() && decode(&[0; 56]).is_none() && decode(&bytes[..10]).is_none());
        bytes[2] = 2;
        assert!(decode(&bytes).is_none(), "another version");
    }
}
