// Command dist builds what users install, from a clean checkout into one folder,
// and the same bit for bit every time:
//
//	go build ──▶ bin/tandem-OS-ARCH ─┬─▶ packages/   deb, rpm, apk        (installers/packages, nfpm)
//	tandem docs ──▶ man, completion, ┘
//	                unit, config     ┌─▶ images/     OCI layouts and tars (installers/images, go-containerregistry)
//	             bin/tandem-OS-ARCH ─┤
//	                                 └─▶ sbom/       SPDX, one for each program
//	installers/*/dist OUT VERSION    ──▶ what else there is: each such program is run
//	SHA256SUMS                       ──▶ over all files
//
// All times in the artifacts are SOURCE_DATE_EPOCH, by default the time of the
// commit; paths of the machine that built them do not get in. It is a module of
// its own: what builds packages is no dependency of the product.
package main
