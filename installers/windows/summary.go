// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"
)

// The properties of an MSI's summary with times, and the type of a time
// (MS-OLEPS).
const (
	created, saved = 12, 13
	fileTime       = 0x40
)

// summaryFormat is the FMTID by which the summary begins.
const summaryFormat = "\xe0\x85\x9f\xf2\xf9\x4f\x68\x10\xab\x91\x08\x00\x2b\x27\xb3\xd9"

var errSummary = errors.New("the summary of the MSI is not where it is expected")

// setDates sets the times in the summary of an MSI: its tools write the present,
// and the same input would not make the same file. The summary is a small stream
// that is stored in one piece.
func setDates(msi []byte, at time.Time) error {
	const header = 28 // of the property set, up to its FMTID
	i := bytes.Index(msi, []byte(summaryFormat))
	if i < header || i+20 > len(msi) {
		return errSummary
	}
	stream := msi[i-header:]
	begin := binary.LittleEndian.Uint32(stream[header+16:])
	if uint64(begin)+8 > uint64(len(stream)) {
		return errSummary
	}
	section := stream[begin:]
	count := binary.LittleEndian.Uint32(section[4:])
	done := 0
	for n := range uint64(min(count, 64)) {
		if 16+8*n > uint64(len(section)) {
			return errSummary
		}
		id, where := binary.LittleEndian.Uint32(section[8+8*n:]), uint64(binary.LittleEndian.Uint32(section[12+8*n:]))
		if id != created && id != saved {
			continue
		}
		if where+12 > uint64(len(section)) || binary.LittleEndian.Uint32(section[where:]) != fileTime {
			return errSummary
		}
		binary.LittleEndian.PutUint64(section[where+4:], since1601(at))
		done++
	}
	if done != 2 {
		return errSummary
	}
	return nil
}

// since1601 is a time in Windows' terms: in 100 ns since 1601.
func since1601(t time.Time) uint64 {
	const until1970 = 11644473600
	return uint64(t.Unix()+until1970) * 1e7
}
