//! What a sandbox reaches, and that its ports are reached from outside in every network.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod inside;

use std::net::TcpListener;

use inside::{Home, Who};
use sandhold_core::{DAEMON_PORT, ProcessEvent, ProcessSpec, SandboxHandle};
use sandhold_local::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PYTHON: &str = "/usr/bin/python3";

fn everybody() -> Option<impl Iterator<Item = Home>> {
    if !std::path::Path::new(PYTHON).exists() {
        println!("skipped: needs {PYTHON}");
        return None;
    }
    let all = [Who::Me, Who::Ordinary].into_iter();
    Some(all.filter(|who| *who == Who::Me || inside::is_root()).filter_map(Home::new))
}

/// Connects to the port on loopback and prints how that went.
fn connect(port: u16) -> String {
    format!("{PYTHON} -c 'import socket; s = socket.socket(); print(s.connect_ex((\"127.0.0.1\", {port})))'")
}

#[tokio::test]
async fn loopback_of_the_host_is_reached_in_network_host_only() {
    let Some(homes) = everybody() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for home in homes {
        for (network, expected) in
            [(Network::Host, 0), (Network::Loopback, libc::ECONNREFUSED), (Network::None, libc::EACCES)]
        {
            let mut spec = home.spec(&format!("reach-{network:?}"));
            spec.network = network;
            let sandbox = home.start(spec);
            assert_eq!(sandbox.info().await.isolation.network, network);
            assert_eq!(sandbox.ok("user", &connect(port)).await.trim(), expected.to_string(), "{network:?}");
        }
    }
}

#[tokio::test]
async fn a_port_inside_is_reached_through_the_handle_in_every_network() {
    let Some(homes) = everybody() else { return };
    for home in homes {
        for network in [Network::Host, Network::Loopback, Network::None] {
            let mut spec = home.spec(&format!("port-{network:?}"));
            spec.network = network;
            let sandbox = home.start(spec);
            let script = "import socket\n\
                s = socket.create_server((\"127.0.0.1\", 0))\n\
                print(s.getsockname()[1], file=open(\"/tmp/port.new\", \"w\"), flush=True)\n\
                import os; os.rename(\"/tmp/port.new\", \"/tmp/port\")\n\
                c = s.accept()[0]; c.sendall(b\"hello \" + c.recv(100)); c.close()\n";
            let spec = ProcessSpec::argv(PYTHON, ["-c", script]);
            let _server = sandbox.handle().start(spec).await.unwrap();
            let port = sandbox.ok("user", "until cat /tmp/port 2>/dev/null; do sleep 0.01; done").await;
            let mut stream = sandbox.handle().dial(port.trim().parse().unwrap()).await.unwrap();
            stream.write_all(b"you").await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "hello you", "{network:?}");
        }
    }
}

#[tokio::test]
async fn without_a_network_processes_do_not_reach_each_other() {
    let Some(homes) = everybody() else { return };
    for home in homes {
        let mut spec = home.spec("apart");
        spec.network = Network::None;
        let sandbox = home.start(spec);
        let script = r#"
import errno, socket
server = socket.create_server(("127.0.0.1", 0))
def tried(name, act):
    try:
        act(); print(name, "worked")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
tried("tcp", lambda: socket.create_connection(server.getsockname()))
tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tried("udp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tried("mptcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
tried("fast open", lambda: socket.socket().sendto(b"x", 0x20000000, server.getsockname()))
tried("unix", lambda: socket.socketpair())
"#;
        let text = sandbox.ok("root", &format!("{PYTHON} -c '{script}'")).await;
        let expected =
            "tcp EACCES\nudp EPERM\nudp6 EPERM\nraw EPERM\nmptcp EPERM\nfast open EPERM\nunix worked\n";
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn the_daemons_port_is_the_daemon_whatever_listens_on_it_inside() {
    let Some(homes) = everybody() else { return };
    for home in homes {
        let sandbox = home.start(home.spec("daemon-port"));
        let script = "import socket\n\
            s = socket.create_server((\"127.0.0.1\", 49983))\n\
            print(\"listening\", flush=True)\n\
            while True: s.accept()[0].sendall(b\"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\nspoofed\")\n";
        let mut impostor = sandbox.handle().start(ProcessSpec::argv(PYTHON, ["-c", script])).await.unwrap();
        let said = impostor.next_event().await.unwrap();
        assert!(matches!(said, Some(ProcessEvent::Output { .. })), "{said:?}");
        let mut stream = sandbox.handle().dial(DAEMON_PORT).await.unwrap();
        let request = b"GET /sandhold/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"id\":\"daemon-port\"") && !answer.contains("spoofed"), "{answer}");
    }
}
