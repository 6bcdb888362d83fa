//! The arguments of `fabric attach`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::bounds::FABRIC_NAME_MAX;

/// Memory of a client that the server accesses remotely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricMemory {
    /// Its address in the provider's terms.
    pub address: u64,
    /// What lets one use it.
    pub key: u64,
    /// Its length in bytes; 0 if unused.
    pub bytes: u64,
}

/// The arguments of `fabric attach`: a client's endpoint and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricAttach<'a> {
    /// The endpoint's name, in valid base64.
    name: &'a [u8],
    /// The token that every message to the client must carry.
    pub token: u64,
    /// The messages that it can receive.
    pub credits: u16,
    /// Memory for requests too long for messages: the server reads it.
    pub staging: FabricMemory,
    /// Memory for answers too long for messages: the server writes it.
    pub landing: FabricMemory,
}

impl<'a> FabricAttach<'a> {
    /// Checks the arguments; `None` if they are invalid. `name` is in base64.
    pub fn new(
        name: &'a [u8],
        token: u64,
        credits: u16,
        staging: FabricMemory,
        landing: FabricMemory,
    ) -> Option<FabricAttach<'a>> {
        let attach = FabricAttach { name, token, credits, staging, landing };
        let is_sound = |memory: FabricMemory| memory.address.checked_add(memory.bytes).is_some();
        let has_name = !name.is_empty() && name.len() <= encoded_len(FABRIC_NAME_MAX) && attach.is_named();
        (has_name && credits > 0 && is_sound(staging) && is_sound(landing)).then_some(attach)
    }

    /// Name of its endpoint, as the provider made it: 1 to [`FABRIC_NAME_MAX`] bytes.
    pub fn name(&self) -> Vec<u8> {
        STANDARD.decode(self.name).unwrap_or_default()
    }

    fn is_named(&self) -> bool {
        // More than the longest name needs, as decoding requires whole groups.
        let mut name = [0; FABRIC_NAME_MAX + 3];
        STANDARD.decode_slice(self.name, &mut name).is_ok_and(|len| len <= FABRIC_NAME_MAX)
    }
}

/// Returns the base64 length of this many bytes.
const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}
