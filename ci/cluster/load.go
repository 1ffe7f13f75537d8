// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Load of the life of a cluster: callers in pods hold connections to Services and make new ones, all
// the time, to servers that send back what they get.
const (
	loadPort    = "7777"
	heldByEach  = 10                     // connections that a caller holds to each target
	heldBeat    = 200 * time.Millisecond // between two messages on one of them
	newPeriod   = 50 * time.Millisecond  // between two new connections to each target
	loadTimeout = 3 * time.Second        // of an answer; a lost SYN is sent again after one second
	atOnce      = 100                    // new connections to a target that wait
)

const (
	loadImage     = "cluster.invalid/load:lab"
	nobodyAddress = "10.96.77.78" // of a Service without endpoints: files/questions.yaml
)

// loadServer is the cluster IP of the servers.
const loadServer = "10.96.77.77"

// callers are the DaemonSets that call.
func callers() []string { return []string{"caller", "caller-too"} }

func loadValues() map[string]any {
	return map[string]any{"Image": loadImage, "ClusterIP": loadServer, "Port": loadPort, "NodePort": "30777", "Nobody": nobodyAddress, "Callers": callers()}
}

// counts are what a caller has seen since it began.
type counts struct{ Made, Failed, Held, Broken int64 }

func (c counts) minus(o counts) counts {
	return counts{c.Made - o.Made, c.Failed - o.Failed, c.Held - o.Held, c.Broken - o.Broken}
}

func (c counts) plus(o counts) counts {
	return counts{c.Made + o.Made, c.Failed + o.Failed, c.Held + o.Held, c.Broken + o.Broken}
}

// lastCounts reads the last counts in a caller's output, which complaints may follow.
func lastCounts(output string) (c counts, err error) {
	lines := strings.Split(output, "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "{") {
			err = json.Unmarshal([]byte(line), &c)
			return c, err
		}
	}
	return c, fmt.Errorf("no counts in %d lines", len(lines))
}

// complaints counts those of callers by kind, target and the last part of the error.
func complaints(output string) map[string]int {
	all := map[string]int{}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "{") {
			continue
		}
		parts := strings.Split(strings.TrimSpace(line), ": ")
		_, what, _ := strings.Cut(parts[0], " ") // after the time
		all[what+": "+parts[len(parts)-1]]++
	}
	return all
}

// echo serves until the listener is closed.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// caller counts connections.
type caller struct {
	made, failed, held, broken atomic.Int64
	say                        io.Writer // why connections fail
}

func (c *caller) counts() counts {
	return counts{c.made.Load(), c.failed.Load(), c.held.Load(), c.broken.Load()}
}

// run calls all targets until the context ends.
func (c *caller) run(ctx context.Context, targets []string) {
	var group sync.WaitGroup
	for _, to := range targets {
		for range heldByEach {
			group.Go(func() { c.hold(ctx, to) })
		}
		group.Go(func() { c.makeNew(ctx, to) })
	}
	group.Wait()
}

// hold holds a connection, and makes another one when it breaks.
func (c *caller) hold(ctx context.Context, to string) {
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", to, loadTimeout)
		if err != nil {
			time.Sleep(heldBeat)
			continue
		}
		c.held.Add(1)
		for err == nil && ctx.Err() == nil {
			if err = exchange(conn); err == nil {
				time.Sleep(heldBeat)
			}
		}
		conn.Close()
		c.held.Add(-1)
		if ctx.Err() == nil {
			c.broken.Add(1)
			c.complain("held", to, err)
		}
	}
}

// makeNew makes a connection every so often, whether the ones before have been answered or not.
func (c *caller) makeNew(ctx context.Context, to string) {
	room := make(chan struct{}, atOnce)
	tick := time.NewTicker(newPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case room <- struct{}{}:
		default:
			continue
		}
		go func() {
			defer func() { <-room }()
			conn, err := net.DialTimeout("tcp", to, loadTimeout)
			if err == nil {
				err = exchange(conn)
				conn.Close()
			}
			c.made.Add(1)
			if err != nil && ctx.Err() == nil {
				c.failed.Add(1)
				c.complain("new", to, err)
			}
		}()
	}
}

func (c *caller) complain(kind, to string, err error) {
	fmt.Fprintf(c.say, "%s %s %s: %v\n", time.Now().UTC().Format("15:04:05.000"), kind, to, err)
}

// exchange sends a message and reads it back.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(loadTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}
