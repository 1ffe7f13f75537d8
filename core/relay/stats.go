package relay

import "sync/atomic"

// Stats are a Server's figures since its start, but for Open and Sessions,
// which are those of the moment.
type Stats struct {
	Accepted uint64 // TCP connections of clients
	Open     int64
	Refused  uint64 // by policy
	Retried  uint64 // attempts to reach an endpoint that failed
	Failed   uint64 // connections for which no endpoint was reached
	Scarce   uint64 // how often descriptors or ports had run out
	Sessions int64
	Dropped  uint64 // UDP datagrams that could not be delivered
}

type counters struct {
	accepted, refused, retried, failed, scarce, dropped atomic.Uint64
	open, sessions                                      atomic.Int64
}

// Stats returns the figures.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Accepted: c.accepted.Load(), Open: c.open.Load(), Refused: c.refused.Load(), Retried: c.retried.Load(),
		Failed: c.failed.Load(), Scarce: c.scarce.Load(), Sessions: c.sessions.Load(), Dropped: c.dropped.Load(),
	}
}
