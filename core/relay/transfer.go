package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// pair is a client's connection and the one to its endpoint.
type pair struct {
	server     *Server
	client, up *net.TCPConn
	share      *share
	directions atomic.Int32 // that still run
	broken     atomic.Bool
}

// transfer carries both directions of a connection until its endpoint's has
// ended. It does not wait for the client's. Some data may have been read already.
func (s *Server) transfer(client, up *net.TCPConn, by *share, fromClient, fromUp []byte) {
	p := &pair{server: s, client: client, up: up, share: by}
	p.directions.Store(2)
	s.stats.open.Add(1)
	s.work.Go(func() { p.direction(up, client, fromClient) })
	p.direction(client, up, fromUp)
}

// direction carries all from src to dst. An end of src is passed on and leaves
// the other direction as it is; an error ends both.
func (p *pair) direction(dst, src *net.TCPConn, data []byte) {
	var err error
	if len(data) > 0 {
		_, err = dst.Write(data)
	}
	if err == nil {
		err = p.server.carry(dst, src)
	}
	if err != nil && !p.broken.Swap(true) {
		reset(p.client)
		reset(p.up)
	}
	if p.directions.Add(-1) > 0 {
		_ = dst.CloseWrite() // the direction that ends last closes both instead
		return
	}
	_ = p.client.Close()
	_ = p.up.Close()
	p.server.release(p.client)
	p.server.stats.open.Add(-1)
	p.server.leave(p.share)
}

const (
	// chunk is as much of a stream as is read at once: more is spliced.
	chunk = 16 << 10
	// datagram has room for the largest one of UDP.
	datagram = 64 << 10
	// bulk is how much is spliced before it is looked again whether that is
	// worth while: for splice(2) a connection needs a pipe of its own.
	bulk = 8 << 20
	// stall is how long a pipe is kept for a connection that pauses.
	stall = time.Second
)

// carry copies until src ends. It holds a buffer only while there is something
// to copy, and splices what comes faster than it can be copied.
func (s *Server) carry(dst, src *net.TCPConn) error {
	in, err := s.newStream(src, &s.buffers)
	if err != nil {
		return err
	}
	for {
		data, err := in.next()
		if err == nil {
			_, err = dst.Write(data)
		}
		in.done()
		if err == nil && zeroCopy && len(data) == chunk {
			err = splice(dst, src)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func splice(dst, src *net.TCPConn) error {
	if err := src.SetReadDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	_, err := dst.ReadFrom(&io.LimitedReader{R: src, N: bulk})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return src.SetReadDeadline(time.Time{})
}
