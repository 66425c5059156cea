"""Clusterings and the number of clusters; pure functions of features and labels.

- `kmeans`: k-means, plain and semi-supervised
- `lloyd`: Lloyd's iterations for all restarts in one batch, in blocks of bounded memory
- `prototypes`: where a classifier starts: principal axes, whitening, k-means
- `settle`: the frozen and the settled answer: mean shift, clusters, a linear head
- `ward`: one tree, all cuts
- `consensus`: K as the number of clusters as tight as the known classes
- `structure`: what features say of categories, whoever made them
- `estimate_k`: three ways to estimate K
- `discover`: categories among images that fit nothing so far
- `graphs`: clusters of a graph of neighbours: semi-supervised FINCH, Infomap
- `mixture`: Gaussians that split and merge
"""
