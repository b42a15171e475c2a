// Package region copies the data of a region to an object store, continuously, and reads the copy back: its PostgreSQL
// server, with the databases of all services, and files such as the certificate authority.
//
// A Copier receives the server's WAL by streaming replication and stores it every few seconds; a replication slot keeps
// the WAL that is not stored yet. Once a day it stores a base backup, which pg_basebackup makes. Fetch writes a base
// backup and the WAL after it to disk. PostgreSQL recovers the databases from them as of a moment; package postgres
// starts that recovery.
//
// Below the store's prefix:
//
//	.regions/NAME/archive-TIME-ID/wal-TIMELINE-START-END-COVERED  a piece of the WAL, compressed
//	.regions/NAME/archive-TIME-ID/mark                            nothing was written after the last piece until a moment
//	.regions/NAME/archive-TIME-ID/base-TIME/part-00000000         a part of a compressed base backup
//	.regions/NAME/archive-TIME-ID/base-TIME/manifest              Manifest, written last: without it nothing is restored
//	.regions/NAME/files-TIME                                      the files, compressed
//
// An archive has the WAL of one server and timeline without a gap, from its first piece on. A server that was
// restored has another timeline, and a server elsewhere another slot, so each begins an archive of its own and
// overwrites nothing. Each object is encrypted by itself (envelope.Box), and cannot be opened under another name. A
// restore detects a missing piece, because the names of pieces have their positions.
//
// Time. COVERED is a moment by the server's clock: every transaction that the server acknowledged before it is in the
// WAL up to END. Recovery to a moment has every transaction acknowledged before the moment, and none that committed
// later.
//
// The package is a tool: local and cli import it. It imports no other package of Atoll but backup.
package region

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// LSN is a position in the WAL.
type LSN = pglogrepl.LSN

// timeFormat is that of the names of archives, base backups and files.
const timeFormat = "20060102T150405.000Z"

// Names of objects, below the prefix of their region, archive or base backup.
const (
	filesPrefix    = "files-"
	archivePrefix  = "archive-"
	basePrefix     = "base-"
	partPrefix     = "part-"
	manifestObject = "manifest"
	markObject     = "mark"
)

// regionPrefix is the prefix of all objects of a region.
func regionPrefix(name string) string { return allRegions + name + "/" }

// allRegions is the prefix of all objects of this package.
const allRegions = ".regions/"

// archive names an archive: archive-TIME-ID.
type archive string

var archiveName = regexp.MustCompile(`^archive-\d{8}T\d{6}\.\d{3}Z-([0-9a-f]{8})$`)

// slot returns the name of the archive's replication slot.
func (a archive) slot() string {
	return slotPrefix + archiveName.FindStringSubmatch(string(a))[1]
}

const slotPrefix = "atoll_backup_"

// Piece is a part of the WAL of one timeline.
type Piece struct {
	Timeline   int32
	Start, End LSN
	Covered    time.Time
}

var pieceName = regexp.MustCompile(`^wal-([0-9A-F]{8})-([0-9A-F]{16})-([0-9A-F]{16})-(\d{13})$`)

// name returns the name of the piece's object. Names are in the order of the WAL.
func (p Piece) name() string {
	return fmt.Sprintf("wal-%08X-%016X-%016X-%013d", p.Timeline, uint64(p.Start), uint64(p.End), p.Covered.UnixMilli())
}

func parsePiece(name string) (p Piece, ok bool) {
	m := pieceName.FindStringSubmatch(name)
	if m == nil {
		return p, false
	}
	timeline, err1 := strconv.ParseUint(m[1], 16, 31)
	start, err2 := strconv.ParseUint(m[2], 16, 64)
	end, err3 := strconv.ParseUint(m[3], 16, 64)
	covered, err4 := strconv.ParseInt(m[4], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || start >= end {
		return p, false
	}
	return Piece{int32(timeline), LSN(start), LSN(end), time.UnixMilli(covered).UTC()}, true
}

// content lists the objects of an archive.
type content struct {
	name   archive
	pieces []Piece  // in the order of the WAL
	bases  []string // complete ones: "base-TIME", in the order of time
	all    []string // whole names of all objects
}

// sortContents groups the names of a region's objects by archive, the oldest archive first. files are the whole names
// of the objects files-TIME, the oldest first.
func sortContents(region string, names []string) (archives []content, files []string) {
	prefix := regionPrefix(region)
	byName := map[archive]*content{}
	for _, name := range names {
		rest, isOfRegion := strings.CutPrefix(name, prefix)
		if !isOfRegion {
			continue
		}
		if strings.HasPrefix(rest, filesPrefix) {
			if _, err := timeOf(rest, filesPrefix); err == nil {
				files = append(files, name)
			}
			continue
		}
		first, object, _ := strings.Cut(rest, "/")
		if !archiveName.MatchString(first) {
			continue
		}
		c := byName[archive(first)]
		if c == nil {
			c = &content{name: archive(first)}
			byName[archive(first)] = c
		}
		c.all = append(c.all, name)
		if p, ok := parsePiece(object); ok {
			c.pieces = append(c.pieces, p)
		} else if base, isManifest := strings.CutSuffix(object, "/"+manifestObject); isManifest && isBase(base) {
			c.bases = append(c.bases, base)
		}
	}
	for _, c := range byName {
		slices.Sort(c.bases)
		slices.SortFunc(c.pieces, func(a, b Piece) int { return strings.Compare(a.name(), b.name()) })
		archives = append(archives, *c)
	}
	slices.SortFunc(archives, func(a, b content) int { return strings.Compare(string(a.name), string(b.name)) })
	slices.Sort(files)
	return archives, files
}

// isBase reports whether a name is that of a base backup, "base-TIME".
func isBase(name string) bool {
	_, err := timeOf(name, basePrefix)
	return err == nil && strings.HasPrefix(name, basePrefix)
}

// timeOf returns the time in the name of a base backup or of files.
func timeOf(name, prefix string) (time.Time, error) {
	return time.Parse(timeFormat, strings.TrimPrefix(name, prefix))
}
