//! As much of a server of S3 as a mirror needs, which keeps what it was asked. Listings have pages of two.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

pub const BUCKET: &str = "a-bucket";
const PAGE: usize = 2;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub method: String,
    pub target: String,
    /// With their names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Whether a text is anywhere in it.
    pub fn has(&self, text: &str) -> bool {
        self.target.contains(text)
            || self.headers.iter().any(|(_, value)| value.contains(text))
            || String::from_utf8_lossy(&self.body).contains(text)
    }
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    objects: BTreeMap<String, Vec<u8>>,
    refusal: Option<(u16, &'static str)>,
}

pub struct Wire {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Wire {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Self { url, state }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Answers everything with a status and a code of S3, or as it should.
    pub fn refuse(&self, refusal: Option<(u16, &'static str)>) {
        self.state.lock().unwrap().refusal = refusal;
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn serve(stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        let (status, headers, body) = {
            let mut state = state.lock().unwrap();
            let answer = answer(&mut state, &request);
            state.seen.push(request.clone());
            answer
        };
        let length = match request.method.as_str() {
            "HEAD" if status == 200 => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("HTTP/1.1 {status} x\r\n{headers}{length}\r\n");
        let body = if request.method == "HEAD" { &[][..] } else { &body };
        if writer.write_all(&[head.as_bytes(), body].concat()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Seen> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split(' ');
    let mut request =
        Seen { method: words.next()?.to_owned(), target: words.next()?.to_owned(), ..Seen::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => request.headers.push((name.to_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

fn answer(state: &mut State, request: &Seen) -> (u16, String, Vec<u8>) {
    let refuse = |status, code: &str| {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
        (status, "Content-Type: application/xml\r\n".to_owned(), body.into_bytes())
    };
    if let Some((status, code)) = state.refusal {
        return refuse(status, code);
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let key = path.strip_prefix(&format!("/{BUCKET}")).unwrap_or(path).trim_start_matches('/');
    let stamp = "Last-Modified: Mon, 30 Nov 2026 12:00:00 GMT\r\nETag: \"an-etag\"\r\n";
    match request.method.as_str() {
        "PUT" => {
            state.objects.insert(key.to_owned(), request.body.clone());
            (200, stamp.to_owned(), Vec::new())
        }
        "GET" if query.contains("list-type=2") => (200, String::new(), list(state, query).into_bytes()),
        "GET" | "HEAD" => match state.objects.get(key) {
            Some(object) if request.method == "HEAD" => {
                (200, format!("{stamp}Content-Length: {}\r\n", object.len()), Vec::new())
            }
            Some(object) => (200, stamp.to_owned(), object.clone()),
            None => refuse(404, "NoSuchKey"),
        },
        _ => refuse(405, "MethodNotAllowed"),
    }
}

fn list(state: &State, query: &str) -> String {
    let value = |name: &str| {
        let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_default().replace("%2F", "/")
    };
    let (prefix, after) = (value("prefix"), value("continuation-token"));
    let mut found = state.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let page: Vec<_> = found.by_ref().take(PAGE).collect();
    let next = match (found.next(), page.last()) {
        (Some(_), Some((last, _))) => {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>")
        }
        _ => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    let contents: String = page
        .iter()
        .map(|(key, object)| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>{}</Size></Contents>",
                object.len()
            )
        })
        .collect();
    format!("<?xml version=\"1.0\"?><ListBucketResult>{next}{contents}</ListBucketResult>")
}
