// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package relay

import (
	"errors"
	"fmt"
	"net"
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

// datagrams returns what does not wait: a relay holds its buffer while it reads.
func datagrams(*net.UDPConn) (await func() error) { return func() error { return nil } }

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
