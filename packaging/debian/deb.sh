#!/bin/sh
# What `make deb` runs: packages of this checkout, uncommitted changes and all,
# in build/deb. The tree they are built in is a copy, with debian/ on top.
#
# CUDA=0 leaves out ocrfs-cuda. VERSION: else 0.1+git and the time of the commit,
# so that a later one is an upgrade.
set -eu
cd "$(dirname "$0")/../.."
out=build/deb
tree=$out/tree
when=$(git log -1 --format=%ct 2>/dev/null || date +%s)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo local)
version=${VERSION:-0.1+git$(date -u -d "@$when" +%Y%m%d.%H%M%S).$commit}
[ "${CUDA:-1}" = 0 ] && nocuda=pkg.ocrfs.nocuda || nocuda=

mkdir -p $tree
# Objects of the last build stay, so that the next is quick.
find $tree -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -pt $tree
mv $tree/packaging/debian $tree/debian
cat > $tree/debian/changelog <<END
ocrfs ($version) unstable; urgency=medium

  * Built from commit $commit.

 -- The ocrfs maintainers <maintainers@ocrfs.invalid>  $(date -uR -d "@$when")
END
rm -f $out/*.deb $out/*.ddeb $out/*.changes $out/*.buildinfo
cd $tree
env -u MAKEFLAGS -u MFLAGS DEB_BUILD_PROFILES="$nocuda" SOURCE_DATE_EPOCH="$when" \
    dpkg-buildpackage -us -uc -b -j2
cd - > /dev/null
ls -l $out/*.deb
