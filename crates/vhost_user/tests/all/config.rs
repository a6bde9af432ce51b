//! The config space: read at both offsets, written, and announced as changed.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use crate::common::{CONFIG_BYTES, Event, Server};
use vhost::VhostBackend;
use vhost::vhost_user::message::{FrontendReq, VhostUserConfigFlags};
use vhost::vhost_user::{FrontendReqHandler, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandlerMut};
use vhost_user::BackendChannel;

#[test]
fn qemu_and_cloud_hypervisor_read_the_same() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let flags = VhostUserConfigFlags::empty();
    let whole: Vec<u8> = (0..CONFIG_BYTES as u8).collect();
    let (_, qemu) = frontend.get_config(0, CONFIG_BYTES as u32, flags, &[0; CONFIG_BYTES]).unwrap();
    assert_eq!(qemu, whole);
    let writable = VhostUserConfigFlags::WRITABLE;
    let (head, cloud) = frontend.get_config(0x100, CONFIG_BYTES as u32, writable, &[0; CONFIG_BYTES]).unwrap();
    assert_eq!(cloud, whole);
    assert_eq!({ head.offset }, 0x100);
    let (_, part) = frontend.get_config(32, 2, flags, &[0; 2]).unwrap();
    assert_eq!(part, [32, 33]);
}

#[test]
fn a_read_that_is_refused_is_answered_with_an_empty_body() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let mut body = Vec::new();
    for field in [60u32, 8, 0] {
        body.extend_from_slice(&field.to_ne_bytes());
    }
    body.extend_from_slice(&[0; 8]);
    raw.send(FrontendReq::GET_CONFIG.into(), 1, &body, &[]);
    assert_eq!(raw.receive(), (FrontendReq::GET_CONFIG.into(), 0x5, Vec::new()));
    // So is one whose size does not match its body.
    raw.send(FrontendReq::GET_CONFIG.into(), 1, &body[..16], &[]);
    assert_eq!(raw.receive(), (FrontendReq::GET_CONFIG.into(), 0x5, Vec::new()));
}

#[test]
fn a_write_reaches_the_device_and_its_refusal_the_frontend() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let flags = VhostUserConfigFlags::empty();
    frontend.set_config(32, flags, &[1]).unwrap();
    frontend.set_config(0x100 + 32, flags, &[0]).unwrap();
    let written = [Event::SetConfig(32, vec![1]), Event::SetConfig(32, vec![0])];
    assert_eq!(server.shared.take(), written);
    frontend.set_config(70, flags, &[1]).unwrap_err();
}

#[derive(Default)]
struct Announcements(u32);

impl VhostUserFrontendReqHandlerMut for Announcements {
    fn handle_config_change(&mut self) -> HandlerResult<u64> {
        self.0 += 1;
        Ok(0)
    }
}

/// The end of the backend channel that the backend gets.
struct Far(RawFd);

impl AsRawFd for Far {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

fn channel(server: &Server) -> BackendChannel {
    server.shared.channel.lock().unwrap().clone().unwrap()
}

#[test]
fn a_changed_config_space_is_announced() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let change = channel(&server);
    assert!(!change.config_changed(), "there is no channel yet");

    let seen = Arc::new(Mutex::new(Announcements::default()));
    let mut handler = FrontendReqHandler::new(seen.clone()).unwrap();
    frontend.set_backend_request_fd(&Far(handler.get_tx_raw_fd())).unwrap();
    assert!(change.config_changed());
    handler.handle_request().unwrap();
    assert!(change.clone().config_changed());
    handler.handle_request().unwrap();
    assert_eq!(seen.lock().unwrap().0, 2);

    drop(frontend);
    server.shared.wait_for_end();
    assert!(!change.config_changed(), "the session is over");
}

#[test]
fn a_frontend_that_does_not_read_announcements_blocks_nobody() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let handler = FrontendReqHandler::new(Arc::new(Mutex::new(Announcements::default()))).unwrap();
    frontend.set_backend_request_fd(&Far(handler.get_tx_raw_fd())).unwrap();
    let change = channel(&server);
    let accepted = (0..100_000).take_while(|_| change.config_changed()).count();
    assert!(accepted > 0 && accepted < 100_000, "the channel took {accepted} announcements");
    frontend.get_features().unwrap();
}

#[test]
fn a_backend_channel_of_the_wrong_kind_is_refused() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    frontend.set_backend_request_fd(&crate::common::memfd(0)).unwrap_err();
    let (datagram, _other) = UnixDatagram::pair().unwrap();
    frontend.set_backend_request_fd(&datagram).unwrap_err();
    assert!(!channel(&server).config_changed());
}
