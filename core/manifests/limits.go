package manifests

import (
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// limits bound what a folder can make this process do. The folder may be
// written by less trusted people than those who run the proxy.
type limits struct {
	files        int // in the folder
	fileBytes    int64
	allBytes     int64 // in all files of the folder
	documents    int   // in a file
	allDocuments int   // in all files of the folder
	problems     int   // of the folder that are told
	docBytes     int   // in a document, or in one item of a List
	depth        int   // of nesting
	work         int   // YAML nodes visited, through aliases too
	jsonBytes    int   // of a document after its aliases were expanded
	faults       int   // reported for one document

	nodePorts config.PortRange // that Services may have
}

// defaults: Kubernetes itself refuses objects above 1.5 MiB (etcd), and no
// object of ours nests deeper than about fifteen levels. 100,000 Services with
// their slices are some 250 MB in 200,000 documents; what is kept of a document,
// however small it is, takes half a kilobyte.
func defaults() limits {
	return limits{
		files: 50_000, fileBytes: 64 << 20, allBytes: 512 << 20, documents: 200_000, allDocuments: 400_000, docBytes: 2 << 20,
		problems: 1000,
		depth:    64, work: 2_000_000, jsonBytes: 8 << 20, faults: 20,
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
