//! What the machine itself takes to send bytes: no client of any language can take less.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use crate::Result;

/// Bytes written and read at once, as the peers write them.
const PIECE: usize = 1 << 20;

/// What a bare sender took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Processor time of the sender, in seconds.
    pub(crate) cpu: f64,
}

/// Sends so many bytes through loopback to a thread that throws them away; the middle one of three runs.
pub(crate) fn send(bytes: u64) -> Result<Floor> {
    let mut runs = (0..3).map(|_| send_once(bytes)).collect::<Result<Vec<_>>>()?;
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(runs[1])
}

fn send_once(bytes: u64) -> Result<Floor> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    sender.set_nodelay(true)?;
    let (mut receiver, _) = listener.accept()?;
    let receiving = std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        while matches!(receiver.read(&mut buffer), Ok(1..)) {}
    });
    let piece = vec![0x5a; PIECE];
    let (begun, before) = (Instant::now(), processor_time()?);
    for _ in 0..bytes / PIECE as u64 {
        sender.write_all(&piece)?;
    }
    let cpu = processor_time()? - before;
    drop(sender);
    receiving.join().map_err(|_| "the receiver broke off")?;
    Ok(Floor { bytes, seconds: begun.elapsed().as_secs_f64(), cpu })
}

/// Processor time of this thread, in seconds.
fn processor_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos: u64 = stat.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanos as f64 / 1e9)
}
