// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"www.velocidex.com/golang/regparser"
)

// A hive is one that others read: an empty root key; and its cells are all there
// is in its block.
func TestHive(t *testing.T) {
	h := hive("SOFTWARE", time.Unix(1800000000, 0))
	if len(h) != 2*block {
		t.Fatalf("%d bytes", len(h))
	}
	r, err := regparser.NewRegistry(bytes.NewReader(h))
	if err != nil {
		t.Fatal(err)
	}
	root := r.OpenKey("")
	if root == nil || len(root.Subkeys()) != 0 || len(root.Values()) != 0 || root.Name() != "ROOT" {
		t.Fatalf("the root key: %+v", root)
	}
	if when := root.LastWriteTime().Unix(); when != 1800000000 {
		t.Errorf("written at %d", when)
	}
	var sum uint32
	for at := 0; at < 512; at += 4 { // the checksum takes part, and nothing is left
		sum ^= binary.LittleEndian.Uint32(h[at:])
	}
	if sum != 0 {
		t.Errorf("the checksum is off by %x", sum)
	}
	var cells []int32
	for at := block + first; at < len(h); {
		size := int32(binary.LittleEndian.Uint32(h[at:]))
		cells = append(cells, size)
		if size == 0 || size%8 != 0 {
			t.Fatalf("cells of %d bytes", cells)
		}
		at += int(max(size, -size))
	}
	if len(cells) != 3 || cells[0] != first-second || cells[1] >= 0 || cells[2] <= 0 {
		t.Errorf("cells of %d bytes: want two in use, then a free one", cells)
	}
}
