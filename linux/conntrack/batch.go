package conntrack

// maxBatch is how many entries are deleted with one system call. All answers to
// it must fit into the socket's receive buffer, even if each is an error.
const maxBatch = 64

// batch is a number of delete requests with consecutive sequence numbers. The
// kernel works them off in order and answers those that fail, and the last.
type batch struct {
	requests []byte
	first    uint32 // sequence number
	n        int
	last     int // where the last request starts
}

func (b *batch) add(seq uint32, e *entry) {
	if b.n == 0 {
		b.first = seq
	}
	b.last = len(b.requests)
	b.requests = appendDelete(b.requests, seq, e)
	b.n++
}

// finish returns the requests, the last of which asks for an answer.
func (b *batch) finish() []byte {
	native.PutUint16(b.requests[b.last+6:], flagRequest|flagAck)
	return b.requests
}

// index tells which request of the batch a sequence number belongs to.
func (b *batch) index(seq uint32) (i int, ok bool) {
	i = int(seq - b.first) // also right when the numbers wrap
	return i, i < b.n
}

func (b *batch) reset() { *b = batch{requests: b.requests[:0]} }
