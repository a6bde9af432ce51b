//! Requests of virtio-scsi (virtio 1.3, 5.6.6.1), encoded here and not taken from the server's rooms, as those of [`blk`](crate::blk).

/// Where the command stands in a request: behind LUN, tag, attribute, priority and CRN.
pub const CDB_AT: usize = 19;

/// Where fields stand in the configuration space (5.6.4).
pub mod config {
    /// num_queues, of 32 bits.
    pub const QUEUES_AT: usize = 0;
    /// sense_size, of 32 bits.
    pub const SENSE_SIZE_AT: usize = 20;
    /// cdb_size, of 32 bits.
    pub const CDB_SIZE_AT: usize = 24;
    /// All of it.
    pub const BYTES: usize = 36;
}

/// Where fields stand in a response.
pub mod response {
    /// Bytes of sense data that were written, of 32 bits.
    pub const SENSE_LEN_AT: usize = 0;
    /// Bytes of data that were not moved, of 32 bits.
    pub const RESIDUAL_AT: usize = 4;
    /// The command's status.
    pub const STATUS_AT: usize = 10;
    /// The transport's outcome.
    pub const RESPONSE_AT: usize = 11;
    /// Sense data, of the size that the configuration says.
    pub const SENSE_AT: usize = 12;
}

/// The address of a logical unit, below 16384, as Linux writes it: one level, flat space addressing (SAM-5, 4.7.7.3).
pub fn address(target: u8, number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    [1, target, 0x40 | high, low, 0, 0, 0, 0]
}

/// Fills `head`, a request with room for as long a command as the configuration says: a simple task.
#[inline]
pub fn write_head(head: &mut [u8], address: [u8; 8], tag: u64, cdb: &[u8]) {
    head[..8].copy_from_slice(&address);
    head[8..16].copy_from_slice(&tag.to_le_bytes());
    head[16..].fill(0);
    head[CDB_AT..][..cdb.len()].copy_from_slice(cdb);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_whose_it_is_and_what() {
        let mut head = [0xff; CDB_AT + 16];
        write_head(&mut head, address(2, 0x1234), 0x0102_0304_0506_0708, &[0x12, 0, 0, 0, 36, 0]);
        assert_eq!(head[..16], [1, 2, 0x52, 0x34, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(head[16..25], [0, 0, 0, 0x12, 0, 0, 0, 36, 0]);
        assert_eq!(head[25..], [0; 10]);
    }
}
