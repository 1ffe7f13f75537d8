// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package relay

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

// zeroCopy reports whether net.TCPConn.ReadFrom moves data within the kernel.
const zeroCopy = false

// maxDescriptors is unknown: accepting backs off when the system is exhausted.
func maxDescriptors() int { return 0 }

// newEngine returns none: goroutines serve all connections.
func newEngine(*shared) (engine, error) { return nil, nil }

// pooledDatagrams reports whether UDP sessions take their buffers from a pool.
const pooledDatagrams = false

// datagrams returns what waits until there is a datagram to read, or an error. On Windows package net
// waits by a read of no bytes that takes nothing away, once what asks for it has said that there is nothing.
// Elsewhere nothing waits: a relay holds its buffer while it reads.
func datagrams(c *net.UDPConn) (await func() error) {
	if runtime.GOOS != "windows" {
		return func() error { return nil }
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return func() error { return err }
	}
	return func() error {
		waited := false
		return raw.Read(func(uintptr) bool {
			was := waited
			waited = true
			return was
		})
	}
}

func systemReaders() (stream, datagrams newReader) { return newBufferedStream, newBufferedDatagrams }

// isListening is not known.
func isListening(listener) bool { return true }

func setMark(_ int, mark uint32) error {
	if mark == 0 {
		return nil
	}
	return fmt.Errorf("fwmark: %w", errors.ErrUnsupported)
}

// silence is not known to the system.
func silence(*net.TCPConn) (time.Duration, bool) { return 0, false }
