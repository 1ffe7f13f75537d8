package manifests

import (
	"maps"
	"slices"
)

// When does an object go away? Only when the folder says so without doubt:
//
//   - its file is gone, or
//   - its file was read to the end and the object is not in it.
//
// "Could not read" is not "absent". A file that cannot be read at all keeps all
// its objects. A document that is refused but still tells its name keeps the
// last good version of that object. A document that does not even tell its name
// may be any of the objects that vanished from the file together with its
// becoming bad, so all those are held until the file is whole again.

// hold works out the objects that stay although the new reading of the file
// lacks them.
func (f *file) hold(units []unit) map[key]placed {
	if !slices.ContainsFunc(units, func(u unit) bool {
		return slices.ContainsFunc(u.objects, func(o *object) bool { return o.bad })
	}) {
		return nil
	}
	present := map[key]bool{}
	var refusedKeys []key
	nameless, newNameless := false, false
	old := f.namelessDocuments()
	for i := range units {
		for _, o := range units[i].objects {
			switch {
			case !o.bad:
				present[o.key] = true
			case o.key != (key{}):
				refusedKeys = append(refusedKeys, o.key)
			default:
				nameless = true
				newNameless = newNameless || !old[units[i].digest]
			}
		}
	}
	held := map[key]placed{}
	if nameless {
		maps.Copy(held, f.held)
	}
	last := f.lastGood()
	for _, k := range refusedKeys {
		if p, ok := last[k]; ok {
			held[k] = p
		}
	}
	if newNameless {
		maps.Copy(held, last)
	}
	maps.DeleteFunc(held, func(k key, _ placed) bool { return present[k] })
	return held
}

// namelessDocuments returns the documents that were bad before, too: what is
// missing now is not missing because of them.
func (f *file) namelessDocuments() map[digest]bool {
	old := map[digest]bool{}
	for i := range f.units {
		for _, o := range f.units[i].objects {
			if o.bad && o.key == (key{}) {
				old[f.units[i].digest] = true
			}
		}
	}
	return old
}

// lastGood returns the last good version of each object of the file.
func (f *file) lastGood() map[key]placed {
	last := map[key]placed{}
	maps.Copy(last, f.held)
	for i := range f.units {
		for _, o := range f.units[i].objects {
			if !o.bad && o.usable() {
				last[o.key] = placed{object: o, file: f.shown, line: f.units[i].line}
			}
		}
	}
	return last
}
