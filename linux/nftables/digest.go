package nftables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
)

// newChain makes the content of a chain.
func newChain(f model.Family, h Hook, rules []Rule) *Chain {
	digests := make([]uint64, len(rules))
	for i, r := range rules {
		digests[i] = r.digest(f)
	}
	return &Chain{Hook: h, Rules: rules, Digest: chainDigest(h, digests)}
}

// digest stands for a rule. It is kept with the rule in the kernel, where it
// tells whether the rule is the one that we would write now: what the kernel
// gives back of a rule is not what was written, byte for byte.
func (r Rule) digest(f model.Family) uint64 {
	return digestOf(tableComment + "\n" + r.text(f))
}

func chainDigest(h Hook, rules []uint64) uint64 {
	return digestOf(fmt.Sprintf("%+v %x", h, rules))
}

func digestOf(s string) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint64(sum[:])
}
