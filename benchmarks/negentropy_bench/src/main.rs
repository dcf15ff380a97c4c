//! How many bytes and round trips does `negentropy` need where our aligner needs so many?
//!
//! One item is one stream in one state: a stream whose state differs is two items, one on each
//! side. Run as `cargo run --release -- <streams>`.

use negentropy::{Id, Negentropy, NegentropyStorageVector};

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d049bb133111eb);
    x ^ (x >> 31)
}

fn id(stream: u64, state: u64) -> Id {
    let mut bytes = [0u8; 32];
    for (part, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = mix(stream.wrapping_mul(31) ^ mix(state + 1) ^ mix(part as u64 + 7));
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    Id::from_byte_array(bytes)
}

fn storage(streams: u64, differing: u64, state: u64) -> NegentropyStorageVector {
    let mut held = NegentropyStorageVector::new();
    let step = if differing > 0 { streams / differing } else { u64::MAX };
    for stream in 0..streams {
        let changed = differing > 0 && stream % step == 0 && stream / step < differing;
        let place = mix(stream) >> 16;
        held.insert(place, id(stream, if changed { state } else { 0 })).unwrap();
    }
    held.seal().unwrap();
    held
}

fn main() {
    let streams: u64 = std::env::args().nth(1).map_or(10_000, |text| text.parse().unwrap());
    println!("differences  round_trips  bytes  milliseconds");
    for differing in [0, 1, 100, 1_000, 10_000] {
        if differing > streams {
            continue;
        }
        let mut client = Negentropy::owned(storage(streams, differing, 1), 0).unwrap();
        let mut server = Negentropy::owned(storage(streams, differing, 2), 0).unwrap();
        let began = std::time::Instant::now();
        let (mut have, mut need) = (Vec::new(), Vec::new());
        let mut message = client.initiate().unwrap();
        let (mut bytes, mut round_trips) = (0, 0);
        loop {
            bytes += message.len();
            let reply = server.reconcile(&message).unwrap();
            bytes += reply.len();
            round_trips += 1;
            match client.reconcile_with_ids(&reply, &mut have, &mut need).unwrap() {
                Some(next) => message = next,
                None => break,
            }
        }
        assert_eq!(need.len() as u64, differing);
        let spent = began.elapsed().as_millis();
        println!("{differing:11}  {round_trips:11}  {bytes:9}  {spent:6}");
    }
}
