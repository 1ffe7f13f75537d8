package conntrack

// readDump passes the entries of the dump with this sequence number to each, as
// they come. It returns the message with which the kernel ended the dump, and
// whether it said that entries may be missing. An error means that the end was not
// reached: receive or each failed, or nonsense came.
func readDump(receive func() ([]byte, error), seq uint32, each func(message) error) (end message, interrupted bool, err error) {
	for {
		b, err := receive()
		if err != nil {
			return end, interrupted, err
		}
		for len(b) > 0 {
			var m message
			if m, b, err = nextMessage(b); err != nil {
				return end, interrupted, err
			}
			if m.seq != seq {
				continue
			}
			interrupted = interrupted || m.flags&flagInterrupted != 0
			switch m.typ {
			case msgDone, msgError:
				return m, interrupted, nil
			case msgNew:
				if err := each(m); err != nil {
					return end, interrupted, err
				}
			}
		}
	}
}
