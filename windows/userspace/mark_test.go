package userspace

import "testing"

func TestMark(t *testing.T) {
	for seconds, ours := range map[uint32]bool{
		lifetime: true, lifetime - 1: true, lifetime - slack + 1: true,
		lifetime + 1: false, lifetime - slack: false, 0: false, 0xffffffff: false, 86400: false,
	} {
		if marked(seconds) != ours {
			t.Errorf("an address that is valid for %d seconds: ours %t", seconds, !ours)
		}
	}
}
