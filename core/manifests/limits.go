package manifests

import (
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// limits bound what a folder can make this process do. The folder may be
// written by less trusted people than those who run the proxy.
type limits struct {
	files     int // in the folder
	fileBytes int64
	documents int // in a file
	docBytes  int // in a document, or in one item of a List
	depth     int // of nesting
	work      int // YAML nodes visited, through aliases too
	jsonBytes int // of a document after its aliases were expanded
	faults    int // reported for one document

	nodePorts config.PortRange // that Services may have
}

// defaults: Kubernetes itself refuses objects above 1.5 MiB (etcd), and no
// object of ours nests deeper than about fifteen levels.
func defaults() limits {
	return limits{
		files: 50_000, fileBytes: 64 << 20, documents: 200_000, docBytes: 2 << 20,
		depth: 64, work: 2_000_000, jsonBytes: 8 << 20, faults: 20,
	}
}

const (
	// settleTime is how long a file that became shorter in place must rest
	// before that is believed: it may be an editor that has truncated the file
	// and goes on writing. Files replaced by renaming are complete at once.
	settleTime = 100 * time.Millisecond

	// racyTime is how young a modification time may be, seen from the moment of
	// reading, for a later change to hide behind the same time stamp. FAT and
	// some network file systems count in steps of two seconds.
	racyTime = 2100 * time.Millisecond
)
