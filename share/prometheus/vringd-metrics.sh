#!/bin/sh
# Answers one HTTP request on standard input with the figures of the daemon, and with 503 while it does not answer.
# Whatever is asked for, nothing but figures leaves the control socket.

cr=$(printf '\r')
while IFS= read -r line && [ -n "${line%"$cr"}" ]; do :; done

if text=$(timeout 5 vringd ctl metrics); then
    printf 'HTTP/1.0 200 OK\r\n'
    printf 'Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\r\n'
    printf '%s\n' "$text"
else
    printf 'HTTP/1.0 503 Service Unavailable\r\n\r\n'
fi
