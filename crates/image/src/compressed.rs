//! Contents of compressed clusters (specification: "Compressed Clusters Descriptor", "compression_type").
//!
//! A cluster of data is asked for and never more is made of it, so that a bomb fills a cluster. Data that ends early is an error.

use crate::header::Compression;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Read;

/// Largest window of a Zstandard frame, in bytes: what its decoder may keep. A frame of a cluster needs no more than a cluster;
/// QEMU's encoder says up to 8 MiB.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// QEMU reads no larger windows of zlib.
const WINDOW_BITS: u8 = 12;

/// Fills `cluster` from what `data` begins with; what follows the compressed data does not matter.
///
/// # Errors
/// What is wrong, without a place.
pub fn decompress(kind: Compression, data: &[u8], cluster: &mut [u8]) -> Result<(), &'static str> {
    match kind {
        Compression::Zlib => {
            let mut stream = Decompress::new(false);
            let done = stream.decompress(data, cluster, FlushDecompress::Finish);
            done.map_err(|_| "it is no deflate stream")?;
            if stream.total_out() == cluster.len() as u64 { Ok(()) } else { Err("its deflate stream ends early") }
        }
        Compression::Zstd => {
            let mut filled = 0;
            // A cluster may be made of several frames.
            let mut rest = data;
            while filled < cluster.len() {
                let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, WINDOW_BYTES_MAX);
                let mut decoder = decoder.map_err(|_| "it is no Zstandard frame")?;
                let before = filled;
                while filled < cluster.len() {
                    match decoder.read(&mut cluster[filled..]) {
                        Ok(0) => break,
                        Ok(bytes) => filled += bytes,
                        Err(_) => return Err("its Zstandard frame is damaged"),
                    }
                }
                if filled == before {
                    return Err("its Zstandard frame ends early");
                }
            }
            Ok(())
        }
    }
}

/// What is to be decompressed into `cluster`. `None`: it has no whole sector less.
pub fn compress(kind: Compression, cluster: &[u8]) -> Option<Vec<u8>> {
    let data = match kind {
        Compression::Zlib => {
            let mut stream = Compress::new_with_window_bits(flate2::Compression::default(), false, WINDOW_BITS);
            let mut out = vec![0; cluster.len()];
            match stream.compress(cluster, &mut out, FlushCompress::Finish) {
                Ok(flate2::Status::StreamEnd) => out.truncate(stream.total_out() as usize),
                // There is no room, so that it is not worth it.
                Ok(flate2::Status::Ok | flate2::Status::BufError) | Err(_) => return None,
            }
            out
        }
        Compression::Zstd => compress_to_vec(cluster, CompressionLevel::Fastest),
    };
    (data.len().next_multiple_of(512) < cluster.len()).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deflated(data: &[u8]) -> Vec<u8> {
        let mut out = vec![0; data.len() + 1024];
        let mut stream = Compress::new(flate2::Compression::default(), false);
        stream.compress(data, &mut out, FlushCompress::Finish).unwrap();
        out.truncate(stream.total_out() as usize);
        out
    }

    #[test]
    fn a_cluster_comes_back_whole_or_not_at_all() {
        let data: Vec<u8> = (0..65_536u32).map(|n| (n / 7 % 251) as u8).collect();
        let mut padded = deflated(&data);
        padded.extend([0xee; 300]);
        let mut out = vec![0; 65_536];
        decompress(Compression::Zlib, &padded, &mut out).unwrap();
        assert_eq!(out, data);
        // More than a cluster is cut, less is an error.
        let mut half = vec![0; 32_768];
        decompress(Compression::Zlib, &padded, &mut half).unwrap();
        assert_eq!(half, data[..32_768]);
        assert!(decompress(Compression::Zlib, &padded, &mut [0; 65_537]).is_err());
        assert!(decompress(Compression::Zlib, &[], &mut out).is_err());
        assert!(decompress(Compression::Zstd, &padded, &mut out).is_err());
        // A frame of one block of 65536 times 0x5a, without a checksum: magic, descriptor, window, block header, byte.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 0x03, 0x00, 0x08, 0x5a];
        decompress(Compression::Zstd, &frame, &mut out).unwrap();
        assert!(out.iter().all(|byte| *byte == 0x5a));
        assert!(decompress(Compression::Zstd, &frame, &mut [0; 65_537]).is_err());
    }

    proptest! {
        /// Any data is a cluster or an error.
        #[test]
        fn noise_is_decompressed_or_refused(noise in prop::collection::vec(any::<u8>(), 0..600), zstd in any::<bool>()) {
            let mut out = [0; 4096];
            let _ = decompress(Compression::Zlib, &noise, &mut out);
            let mut frame = if zstd { vec![0x28, 0xb5, 0x2f, 0xfd] } else { Vec::new() };
            frame.extend(&noise);
            let _ = decompress(Compression::Zstd, &frame, &mut out);
        }
    }
}
