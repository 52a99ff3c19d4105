"""A search of scikit-learn, whose tasks run on the ranks of an MPI job through joblib."""

from joblib import parallel_config
from sklearn.datasets import make_regression
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from mpishare.compat.joblib import register

with register(), parallel_config(backend="mpishare"):
    # Rank 0 alone: the other ranks run its tasks within register(), and end there.
    x, y = make_regression(2000, 50, noise=5.0, random_state=1)
    search = GridSearchCV(Ridge(), {"alpha": [0.01, 1.0, 100.0]}, cv=5)
    search.fit(x, y)
    print(search.best_params_)
